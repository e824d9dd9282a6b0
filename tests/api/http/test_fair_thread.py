"""What takes long is done by one thread, in which users take turns; the event loop and the others go on."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from api.http.fair_thread import MOST_WAITING, FairThread
from api.http.problems import ProblemError
from tests.api.conftest import Service

Work = Callable[[], str]


def test_nobody_waits_for_more_than_one_of_each_other() -> None:
    async def scenario() -> None:
        thread, done, gate = FairThread("test"), list[str](), threading.Event()

        def work(name: str) -> Work:
            def run() -> str:
                assert gate.wait(60)
                done.append(name)
                return name

            return run

        calls = [asyncio.create_task(thread.run("ann", work(f"ann {i}"))) for i in range(5)]
        await asyncio.sleep(0)
        calls.append(asyncio.create_task(thread.run("bob", work("bob"))))
        await asyncio.sleep(0)
        gate.set()
        assert await asyncio.gather(*calls) == [f"ann {i}" for i in range(5)] + ["bob"]
        assert done.index("bob") <= 1
        assert not thread.turns
        assert not thread.waiting
        thread.close()

    asyncio.run(scenario())


def test_one_user_has_only_so_many_in_flight() -> None:
    async def scenario() -> None:
        thread, gate = FairThread("test"), threading.Event()
        calls = [asyncio.create_task(thread.run("ann", lambda: gate.wait(60))) for _ in range(MOST_WAITING)]
        await asyncio.sleep(0)
        with pytest.raises(ProblemError, match="specs of yours are being read"):
            await thread.run("ann", gate.is_set)
        calls.append(asyncio.create_task(thread.run("bob", gate.is_set)))
        gate.set()
        assert all(await asyncio.gather(*calls))
        calls[0].cancel()
        assert await thread.run("ann", gate.is_set), "there is room again"
        thread.close()

    asyncio.run(scenario())


def test_the_service_answers_while_large_specs_are_read(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen of them had all threads that the lists need, too."""
    gate, began = threading.Event(), threading.Semaphore(0)

    def slow(text: bytes) -> dict[str, str]:
        began.release()
        assert gate.wait(60)
        return {"model": "mlp", "data": "digits"}

    monkeypatch.setattr("api.http.body.load_yaml", slow)
    headers = {"Content-Type": "application/yaml"}
    codes: list[int] = []

    def dry_run() -> None:
        codes.append(service.http.post("/v1/jobs?dry_run=true", content=b"model: mlp", headers=headers).status_code)

    threads = [threading.Thread(target=dry_run) for _ in range(16)]
    for thread in threads:
        thread.start()
    assert began.acquire(timeout=60)
    for _ in range(20):
        assert service.http.get("/v1/jobs").status_code == 200
        assert service.http.post("/v1/jobs?dry_run=true", json={"model": "mlp"}).status_code == 200
    assert not codes
    assert not began.acquire(blocking=False), "one at a time"
    gate.set()
    for thread in threads:
        thread.join()
    assert codes == [200] * 16
