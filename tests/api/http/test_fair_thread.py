"""What takes long is done by one thread, in which users take turns; the event loop and the others go on."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from api.http.fair_thread import MOST_IN_FLIGHT, FairThread
from service import MAX_VALUES, TooManyInFlight
from tests.api.conftest import Service, eventually

T = TypeVar("T")


async def run(thread: FairThread, user: str, work: Callable[[], T]) -> T:
    async with thread.turns.place(user) as turn:
        return await thread.run(turn, work)


def test_nobody_waits_for_more_than_one_of_each_other() -> None:
    async def scenario() -> None:
        thread, done, gate = FairThread("specs"), list[str](), threading.Event()

        def work(name: str) -> Callable[[], str]:
            def run() -> str:
                assert gate.wait(60)
                done.append(name)
                return name

            return run

        calls = [asyncio.create_task(run(thread, "ann", work(f"ann {i}"))) for i in range(5)]
        await asyncio.sleep(0)
        calls.append(asyncio.create_task(run(thread, "bob", work("bob"))))
        await asyncio.sleep(0)
        gate.set()
        assert await asyncio.gather(*calls) == [f"ann {i}" for i in range(5)] + ["bob"]
        assert done.index("bob") <= 1
        assert not thread.turns.locks
        assert not thread.turns.in_flight
        thread.close()

    asyncio.run(scenario())


def test_one_user_has_only_so_many_in_flight() -> None:
    async def scenario() -> None:
        thread, gate = FairThread("specs"), threading.Event()
        calls = [asyncio.create_task(run(thread, "ann", lambda: gate.wait(60))) for _ in range(MOST_IN_FLIGHT)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyInFlight, match="specs of yours are being read"):
            await run(thread, "ann", gate.is_set)
        calls.append(asyncio.create_task(run(thread, "bob", gate.is_set)))
        gate.set()
        assert all(await asyncio.gather(*calls))
        calls[0].cancel()
        assert await run(thread, "ann", gate.is_set), "there is room again"
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
        answer = service.http.post("/v1/jobs?dry_run=true", content=b"model: mlp", headers=headers, timeout=120)
        codes.append(answer.status_code)

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


def test_bodies_that_still_come_are_in_flight_too(
    serve: Callable[..., Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them holds memory already."""
    reading = FairThread("specs")
    reading.turns.most = 2
    monkeypatch.setattr("api.http.app.FairThread", lambda _: reading)
    service = serve()
    gate, codes = threading.Event(), list[int]()

    def slowly() -> Iterator[bytes]:
        yield b"model: "
        assert gate.wait(60)
        yield b"mlp"

    def post(body: Iterator[bytes] | bytes) -> int:
        headers = {"Content-Type": "application/yaml"}
        return service.http.post("/v1/jobs?dry_run=true", content=body, headers=headers, timeout=60).status_code

    threads = [threading.Thread(target=lambda: codes.append(post(slowly()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    eventually(lambda: reading.turns.in_flight.total() == 2)
    assert post(b"model: mlp") == 429
    assert service.http.post("/v1/jobs?dry_run=true", json={"model": "mlp"}).status_code == 200, "a small one may"
    gate.set()
    for thread in threads:
        thread.join()
    assert codes == [200] * 2


def test_a_spec_of_many_errors_gets_a_short_answer(service: Service) -> None:
    """Sixteen answers of a megabyte each stayed in the service's memory."""
    body = "".join(f"field-{index}: 1\n" for index in range(MAX_VALUES // 2 - 10))
    answer = service.http.post("/v1/jobs", content=body.encode(), headers={"Content-Type": "application/yaml"})
    assert answer.status_code == 422
    assert len(answer.content) < 20_000
    assert answer.json()["errors"][-1]["message"] == "and 4,940 more errors"
