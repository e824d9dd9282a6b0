"""All that the service writes, each on a small file system that is full: refused or kept for later, never lost."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.database.audit import Act, AuditQuery
from service.database.identity import Requester, Role
from service.database.job_query import Query
from service.database.job_store import Store, Submission
from service.errors import StorageFull
from service.jobs.assembly import build_manager
from service.jobs.manager import JobManager, ManagerConfig
from service.jobs.metric_series import SeriesCache
from service.spec import parse_spec
from service.storage import mirror as mirroring
from service.storage.checkpoints import give
from service.storage.mirror import Mirror
from service.storage.object_storage import Storage
from service.tracking.tensorboard import EventFile
from tests.conftest import Disk
from tests.service.conftest import all_events, eventually, reached, started
from tests.service.fakes import FakeRuns
from tests.service.storage.copies import contents, download, write_checkpoint
from trainers.events import Event, State
from trainers.runtime.event_log import EventLog

SPEC = parse_spec({"name": "a"})
KIB = 1024
BY = Requester(user="ann", role=Role.admin)


def fill(folder: Path) -> Path:
    """Leave no room in a file system. Returns the file that takes it."""
    filler = folder / "filler"
    with filler.open("ab", buffering=0) as file:
        for size in (64 * KIB, 1):
            with contextlib.suppress(OSError):
                while file.write(b"\0" * size):
                    pass
    return filler


def until_refused(write: Callable[[int], object]) -> None:
    """Write again and again, with a number, until there is no room."""
    for number in range(10_000):
        write(number)


def soon(holds: Callable[[], bool], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(f"sqlite:///{tmp_path / 'jobs.db'}")
    yield opened
    opened.close()


def manager_on(store: Store, runs: FakeRuns, runs_dir: Path) -> JobManager:
    return build_manager(store, runs, ManagerConfig(runs_dir, runs_dir, poll_s=0.01))


async def told(manager: JobManager, job_id: str) -> None:
    """Wait until the job says that its state cannot be written."""

    async def says() -> bool:
        return "cannot be written now" in (await manager.show(job_id)).message

    await eventually(says)


def test_the_database(small_disk: Disk, tmp_path: Path) -> None:
    disk = small_disk(2048 * KIB)
    store = Store.open(f"sqlite:///{disk / 'jobs.db'}")
    try:
        first, _ = store.add(Submission(SPEC, "first", "hash"), tmp_path)
        filler = fill(disk)
        with pytest.raises(StorageFull, match="make room"):
            until_refused(lambda number: store.add(Submission(SPEC, f"key {number}", "hash"), tmp_path))
        with pytest.raises(StorageFull):
            until_refused(lambda _: store.audit.record(BY, Act(action="job.cancel")))
        assert store.get(first.id).name == "a"  # reading goes on
        filler.unlink()
        before = len(store.find(Query(limit=10_000)))
        assert store.add(Submission(SPEC, "later", "hash", by=BY), tmp_path)[1]
        assert len(store.find(Query(limit=10_000))) == before + 1
        assert store.audit.find(AuditQuery(limit=1))[0].action == "job.submit"
    finally:
        store.close()


def test_the_beginning_of_a_log(store: Store, small_disk: Disk) -> None:
    disk, runs = small_disk(256 * KIB), FakeRuns()

    async def scenario() -> None:
        manager = manager_on(store, runs, disk)
        await manager.start()
        filler = fill(disk)
        job, is_new = await manager.submit(SPEC)
        assert is_new
        await told(manager, job.id)
        assert runs.order == []
        filler.unlink()
        run = await started(runs, job.id)
        run.succeed()
        await reached(manager, job.id, State.SUCCEEDED)
        assert [event.seq for event in await all_events(manager, job.id)] == [1, 2, 3]
        await manager.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("again", [False, True], ids=["", "restarted"])
def test_the_end_of_a_job_that_was_starting(store: Store, small_disk: Disk, again: bool) -> None:
    """Its coordinator ends without a word, and it is cancelled: it was STARTING, and then CANCELLING, for ever."""
    disk, runs = small_disk(256 * KIB), FakeRuns()

    async def scenario() -> None:
        manager = manager_on(store, runs, disk)
        await manager.start()
        job, _ = await manager.submit(SPEC)
        run = await started(runs, job.id)
        await reached(manager, job.id, State.STARTING)
        run.journal.reserve.unlink()
        filler = fill(disk)
        for size in (2000, 500, 100, 1):  # also in the block that the log has begun
            with contextlib.suppress(OSError):
                while True:
                    run.emit("log", level="info", message="x" * size)
        run.die()
        await manager.cancel(job.id, BY)
        await told(manager, job.id)
        if again:
            await manager.stop()
            manager = manager_on(store, runs, disk)
            await manager.start()
            await told(manager, job.id)
        assert (await manager.show(job.id)).state is State.CANCELLING
        filler.unlink()
        await reached(manager, job.id, State.CANCELLED)
        events = await all_events(manager, job.id)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert events[-1].data["state"] == "CANCELLED"
        await manager.stop()

    asyncio.run(scenario())
    runs.close()


def test_the_checkpoint_that_a_fork_begins_with(small_disk: Disk, tmp_path: Path) -> None:
    disk = small_disk(256 * KIB)
    folder = write_checkpoint(tmp_path / "run", 1000, bytes(48 * KIB))
    filler = fill(disk)
    with pytest.raises(StorageFull, match="no room"):
        give(tmp_path / "run", folder.name, disk / "fork")
    assert sorted(disk.iterdir()) == [filler]
    filler.unlink()
    give(tmp_path / "run", folder.name, disk / "fork")
    assert contents(disk / "fork") == contents(tmp_path / "run")


def test_the_copies_of_runs(small_disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirroring, "RETRY_S", (0.01, 0.02))
    disk = small_disk(256 * KIB)
    storage = Storage.open(f"file://{disk}/copies")
    storage.mark()
    filler = fill(disk)
    write_checkpoint(tmp_path / "job", 1000, bytes(48 * KIB))
    mirror = Mirror(storage, tmp_path, look_s=0.01)
    mirror.start(dict)
    try:
        mirror.look("job", tmp_path / "job")
        soon(lambda: "No space left" in mirror.describe("job"))
        filler.unlink()
        soon(lambda: mirror.describe("job").startswith("copied to"))
    finally:
        mirror.close()
    assert download(storage, tmp_path / "back") == contents(tmp_path / "job")


def test_what_is_written_for_speed_or_for_others(small_disk: Disk) -> None:
    """The columns of charts and the file for TensorBoard: the job goes on without."""
    run_dir = small_disk(256 * KIB) / "run"
    run_dir.mkdir()
    log = EventLog(run_dir)
    figures = {"examples": 7, "examples_per_s": 1.0, "loss": 0.5, "learning_rate": 0.1}
    step = {"step": 1, "epoch": 0.5, "workers": 1, "staleness": {}, **figures}
    counters = {"wait_data_s": 0.0, "wait_communication_s": 0.0, "compute_s": 1.0}
    events: list[Event] = [log.append("step", step | counters), log.append("state", {"state": "SUCCEEDED"})]
    log.close()
    fill(run_dir.parent)
    board = EventFile(run_dir)
    board.add(events)
    assert board.broken
    series = SeriesCache()
    series.keep(run_dir)
    assert series.line(run_dir, "loss", "examples", 10).points == [(7.0, 0.5)]
    assert sorted(path.name for path in run_dir.iterdir()) in (["events.jsonl"], ["events.jsonl", board.path.name])
