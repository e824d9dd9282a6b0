"""What a kill, a full disk and a crowd of posts do not do: lose a job, double one, or end one wrongly."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from service.database.job_query import Query
from service.database.job_store import Store, Submission
from service.errors import StorageFull
from service.jobs import lifecycle
from service.spec import parse_spec
from service.status import Status
from tests.service.conftest import Managed, again, all_events, eventually, reached, started
from tests.service.fakes import FakeRuns, whole_run
from trainers.events import Event, State

SPEC = parse_spec({"name": "a", "labels": {"x": "y"}})

POSTING = """
import sys, threading, itertools
from pathlib import Path
from service.spec import parse_spec
from service.status import Status
from service.database.job_store import Store, Submission

store, numbers, spec = Store.open(sys.argv[1]), itertools.count(), parse_spec({"labels": {"x": "y"}})
lock = threading.Lock()

def post():
    while True:
        key = f"key {next(numbers)}"
        job, _ = store.add(Submission(spec, key, "hash"), Path("/runs"))
        with lock:
            print(key, job.id, sep=",", flush=True)

for _ in range(8):
    threading.Thread(target=post, daemon=True).start()
threading.Event().wait()
"""

SERVING = """
import asyncio, sys
from pathlib import Path
from service.jobs.assembly import build_manager
from service.jobs.manager import ManagerConfig
from service.spec import parse_spec
from service.status import Status
from service.database.job_store import Store
from tests.service.fakes import FakeRuns, whole_run

async def main():
    store = Store.open(sys.argv[1])
    config = ManagerConfig(Path(sys.argv[2]), Path("/"), poll_s=0.001)
    manager = build_manager(store, FakeRuns(script=whole_run), config)
    await manager.start()
    async def post(worker):
        for number in range(10_000):
            job, _ = await manager.submit(parse_spec({"epochs": 2}), f"{worker} {number}")
            print(f"{worker} {number}", job.id, sep=",", flush=True)
    await asyncio.gather(*map(post, range(6)))

asyncio.run(main())
"""


def killed(program: str, arguments: list[str], after: int) -> dict[str, str]:
    """What a process had acknowledged, key -> job, when it was killed after so many."""
    told: dict[str, str] = {}
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]) as process:
        assert process.stdout is not None
        for line in process.stdout:
            key, _, job_id = line.strip().partition(",")
            told[key] = job_id
            if len(told) == after:
                process.send_signal(signal.SIGKILL)
    return {key: job_id for key, job_id in told.items() if len(job_id) == 12}  # the last line may be torn


def test_a_killed_writer_loses_no_job_that_it_acknowledged_and_doubles_none(url: str, tmp_path: Path) -> None:
    acknowledged: dict[str, str] = {}
    for after in (1, 40):
        told = killed(POSTING, [url], after)
        assert len(told) >= after - 1
        store = Store.open(url)
        try:
            if url.startswith("sqlite"):
                with store.engine.connect() as connection:
                    assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
            there = {job.id: job for job in store.find(Query(limit=100_000))}
            acknowledged |= {} if acknowledged else told
            assert set(acknowledged.values()) <= there.keys()
            assert all(job.labels == {"x": "y"} for job in there.values())
            for key, job_id in told.items():
                job, is_new = store.add(Submission(SPEC, key, "hash"), tmp_path)
                assert not is_new
                assert job.id == job_id
        finally:
            store.close()


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_service_that_is_killed_again_and_again_brings_every_job_to_its_one_end(
    url: str, tmp_path: Path, managed: Managed, runs: FakeRuns
) -> None:
    told: dict[str, str] = {}
    for after in (3, 25):
        told |= killed(SERVING, [url, str(tmp_path / "runs")], after)

    async def scenario() -> None:
        runs.script = whole_run
        async with managed() as manager:

            async def is_over() -> bool:
                return not await asyncio.to_thread(manager.store.unfinished)

            await eventually(is_over)
            there = {job.id: job for job in manager.store.find(Query(limit=100_000))}
            assert set(told.values()) <= there.keys()
            for job_id, job in there.items():
                events = await all_events(manager, job_id)
                assert [event.seq for event in events] == list(range(1, len(events) + 1))
                assert [event.is_terminal for event in events] == [False] * (len(events) - 1) + [True]
                assert job.state == events[-1].data["state"]
                # A fake's run dies with its process, as one of Ray's does not: it failed, or its end was written.
                assert job.state is State.SUCCEEDED or job.reason == "CoordinatorLost"

    asyncio.run(scenario())


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_full_database_refuses_and_takes_in_again_when_there_is_room(url: str, tmp_path: Path) -> None:
    store = Store.open(url)
    try:
        first, _ = store.add(Submission(SPEC, "first", "hash"), tmp_path)
        with store.engine.connect() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        store.writer.submit(lambda c: c.exec_driver_sql(f"PRAGMA max_page_count={pages + 4}").scalar()).result()
        taken, refused = [], []

        def add(index: int) -> None:
            try:
                taken.append(store.add(Submission(SPEC, f"key {index}", "hash"), tmp_path)[0].id)
            except StorageFull as error:
                refused.append((index, str(error)))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(add, range(60)))
        assert refused
        assert "make room" in refused[0][1]
        assert sorted(job.id for job in store.find(Query(limit=1000))) == sorted([first.id, *taken])
        assert not store.move(first.id, [State.RUNNING], Status(State.STARTING, "r", "m"))  # reading goes on
        with store.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA max_page_count=1000000")
        store.writer.submit(lambda c: c.exec_driver_sql("PRAGMA max_page_count=1000000").scalar()).result()
        assert store.add(Submission(SPEC, f"key {refused[0][0]}", "hash"), tmp_path)[1]
    finally:
        store.close()


def test_logs_that_cannot_be_written_are_written_when_there_is_room(
    managed: Managed, runs: FakeRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, is_full = lifecycle.append_status, True

    def append(*arguments: Any, **options: Any) -> Event:
        if is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments, **options)

    async def scenario() -> None:
        nonlocal is_full
        monkeypatch.setattr(lifecycle, "append_status", append)
        async with managed() as manager:
            job, is_new = await manager.submit(SPEC, "key")  # the database has it, so it is taken in
            assert is_new
            assert runs.order == []
            same, is_new = await manager.submit(SPEC, "key")
            assert (same.id, is_new) == (job.id, False)  # why it waits may be told otherwise by now
            is_full = False
            run = await started(runs, job.id)
            is_full = True
            run.state(State.RUNNING)
            await reached(manager, job.id, State.RUNNING)
            run.die()
            await asyncio.sleep(0.5)
            assert (await manager.show(job.id)).state is State.RUNNING  # no end that is written nowhere
            is_full = False
            (await again(runs, job.id, run)).succeed()
            await reached(manager, job.id, State.SUCCEEDED)
            events = await all_events(manager, job.id)
            states = [event.data["state"] for event in events if event.type == "state"]
            assert states == ["QUEUED", "RUNNING", "QUEUED", "SUCCEEDED"]

    asyncio.run(scenario())


def begin(log: Path, line: bytes) -> None:
    log.parent.mkdir(parents=True)
    log.write_bytes(line)


@pytest.mark.parametrize("left", [None, b"", b'{"seq":1,"time":17'])
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_log_that_was_to_begin_when_the_machine_went_begins_again(
    left: bytes | None, managed: Managed, runs: FakeRuns
) -> None:
    async def scenario() -> None:
        async with managed() as manager:
            await manager.submit(parse_spec({"workers": 4}))
            waiting, _ = await manager.submit(SPEC, "key")
        run_dir = Path(waiting.run_dir)
        if left is not None:
            begin(run_dir / "events.jsonl", left)
        async with managed() as manager:
            assert (await manager.submit(SPEC, "key"))[0].id == waiting.id
            await manager.cancel(waiting.id)
            events = await all_events(manager, waiting.id)
            assert [(e.seq, e.data["state"]) for e in events] == [(1, "QUEUED"), (2, "CANCELLED")]

    asyncio.run(scenario())


def test_half_a_line_on_a_full_disk_is_taken_back(tmp_path: Path) -> None:
    from trainers import EventLog, EventLogReader

    journal = EventLog(tmp_path)
    journal.append("log", {"level": "info", "message": "whole"})

    class Full:
        def __init__(self, file: object) -> None:
            self.file = file

        def write(self, line: bytes) -> int:
            return self.file.write(line[:7])  # type: ignore[attr-defined, no-any-return]

        def __getattr__(self, name: str) -> object:
            return getattr(self.file, name)

    whole, journal.file = journal.file, Full(journal.file)  # type: ignore[assignment]
    with pytest.raises(OSError, match="No space"):
        journal.append("log", {"level": "info", "message": "cut off"})
    journal.file = whole
    journal.append("log", {"level": "info", "message": "after"})
    journal.close()
    assert [(e.seq, e.data["message"]) for e in EventLogReader(tmp_path).read()] == [(1, "whole"), (2, "after")]
