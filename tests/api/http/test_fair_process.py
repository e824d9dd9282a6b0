"""What takes long is done by one process, in which users take turns; the event loop and the others go on."""

import asyncio
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from api.http.body import AT_ONCE_BYTES
from api.http.fair_process import MOST_IN_FLIGHT, NICENESS, FairProcess
from service import MAX_VALUES, FieldError, SpecInvalid, TooManyInFlight
from tests.api.conftest import Service, eventually
from tests.api.endings import die, die_once
from tests.api.priority import seen

T = TypeVar("T")

LARGE = b"# " + b"a remark" * AT_ONCE_BYTES + b"\nmodel: mlp"


async def run(process: FairProcess, user: str, work: Callable[[], T]) -> T:
    async with process.turns.place(user) as turn:
        return await process.run(turn, work)


@pytest.fixture
def in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread stands for the process, so that a test can hold it up."""
    monkeypatch.setattr("api.http.fair_process.own_process", lambda: ThreadPoolExecutor(1))


@pytest.mark.usefixtures("in_a_thread")
def test_nobody_waits_for_more_than_one_of_each_other() -> None:
    async def scenario() -> None:
        process, done, gate = FairProcess("specs"), list[str](), threading.Event()

        def work(name: str) -> Callable[[], str]:
            def run() -> str:
                assert gate.wait(60)
                done.append(name)
                return name

            return run

        calls = [asyncio.create_task(run(process, "ann", work(f"ann {i}"))) for i in range(5)]
        await asyncio.sleep(0)
        calls.append(asyncio.create_task(run(process, "bob", work("bob"))))
        await asyncio.sleep(0)
        gate.set()
        assert await asyncio.gather(*calls) == [f"ann {i}" for i in range(5)] + ["bob"]
        assert done.index("bob") <= 1
        assert not process.turns.locks
        assert not process.turns.in_flight
        process.close()

    asyncio.run(scenario())


@pytest.mark.usefixtures("in_a_thread")
def test_one_user_has_only_so_many_in_flight() -> None:
    async def scenario() -> None:
        process, gate = FairProcess("specs"), threading.Event()
        calls = [asyncio.create_task(run(process, "ann", lambda: gate.wait(60))) for _ in range(MOST_IN_FLIGHT)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyInFlight, match="specs of yours are being read"):
            await run(process, "ann", gate.is_set)
        calls.append(asyncio.create_task(run(process, "bob", gate.is_set)))
        gate.set()
        assert all(await asyncio.gather(*calls))
        calls[0].cancel()
        assert await run(process, "ann", gate.is_set), "there is room again"
        process.close()

    asyncio.run(scenario())


def test_a_process_that_was_ended_is_made_anew_and_ends_when_nobody_needs_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        process = FairProcess("specs", idle_s=0.0)
        pid = await run(process, "ann", partial(die_once, tmp_path / "died"))
        assert pid != os.getpid()
        while process.process is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        with pytest.raises(BrokenExecutor):
            await run(process, "ann", die)
        assert await run(process, "bob", os.getpid) not in (pid, os.getpid())
        process.close()

    asyncio.run(scenario())


def test_only_the_work_itself_waits_for_the_service_not_its_imports() -> None:
    """Behind everything else, a busy machine took a minute for them, and whoever had sent a spec gave up."""

    async def scenario() -> None:
        process = FairProcess("specs")
        own = os.getpriority(os.PRIO_PROCESS, 0)
        assert await run(process, "ann", seen) == (own, max(own, NICENESS))
        process.close()

    asyncio.run(scenario())


def test_what_is_wrong_with_a_spec_comes_back_whole() -> None:
    error = pickle.loads(pickle.dumps(SpecInvalid([FieldError(pointer="/model", message="there is none")])))
    assert [(one.pointer, one.message) for one in error.errors] == [("/model", "there is none")]


@pytest.mark.parametrize(("lines", "code"), [(b"model: mlp\n", 200), (b"model: mlp\nepochs: none\n", 422)])
def test_a_large_spec_is_read_in_a_process_of_its_own(service: Service, lines: bytes, code: int) -> None:
    body = b"# a remark\n" * AT_ONCE_BYTES + lines
    answer = service.http.post("/v1/jobs?dry_run=true", content=body, headers={"Content-Type": "application/yaml"})
    assert answer.status_code == code, answer.text
    if code == 422:
        assert [(one["pointer"], one["line"]) for one in answer.json()["errors"]] == [("/epochs", AT_ONCE_BYTES + 2)]


@pytest.mark.usefixtures("in_a_thread")
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
        answer = service.http.post("/v1/jobs?dry_run=true", content=LARGE, headers=headers, timeout=120)
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
    reading = FairProcess("specs")
    reading.turns.most = 2
    monkeypatch.setattr("api.http.app.FairProcess", lambda _: reading)
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
    assert post(LARGE) == 429
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
