"""Jobs whose run directories are gone: another machine serves, or the disk was lost. The store is still there."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from service.database.job_store import Store
from service.errors import CheckpointNotFound, CopyDamaged, JobNotFound, StorageUnreachable
from service.jobs.assembly import build_manager
from service.jobs.manager import JobManager, ManagerConfig
from service.spec import parse_spec
from service.storage.checkpoints import chunks
from service.storage.mirror import Mirror
from service.storage.object_storage import Storage
from tests.service import sqlite
from tests.service.conftest import all_events, eventually, reached, started
from tests.service.fakes import FakeRun, FakeRuns
from tests.service.storage.copies import write_checkpoint
from trainers import State

Serving = Callable[[str], AbstractAsyncContextManager[JobManager]]


@pytest.fixture
def serving(tmp_path: Path, runs: FakeRuns, monkeypatch: pytest.MonkeyPatch) -> Serving:
    """Opens a service on a machine of that name: a folder of its own, with the store and the storage of all."""
    monkeypatch.setattr("service.jobs.recovery.RESTORE_EVERY_S", 0.02)
    monkeypatch.setattr("service.storage.mirror.RETRY_S", (0.02, 0.02))

    @asynccontextmanager
    async def serve(machine: str) -> AsyncIterator[JobManager]:
        store = Store.open(sqlite.create_database(tmp_path / "jobs.db"))
        runs_dir = tmp_path / machine / "runs"
        mirror = Mirror(Storage.open(f"file://{tmp_path}/copies"), runs_dir, look_s=0.02)
        manager = build_manager(store, runs, ManagerConfig(runs_dir, tmp_path, poll_s=0.01), mirror)
        await manager.start()
        try:
            yield manager
        finally:
            await manager.stop()
            store.close()

    return serve


def lose(tmp_path: Path, machine: str = "first") -> None:
    """Its disk, and with it the cluster."""
    shutil.rmtree(tmp_path / machine)


async def copied(manager: JobManager, job_id: str) -> None:
    """Until everything of a job that has ended is in storage."""
    mirror = manager.mirror
    assert mirror is not None

    async def holds() -> bool:
        told = (await manager.show(job_id)).storage
        return (
            job_id not in manager.active
            and told == f"copied to {mirror.storage.url}/{job_id}"
            and bool(mirror.storage.sizes(job_id))
        )

    await eventually(holds)


async def waits(manager: JobManager, job_id: str) -> bool:
    """Whether the job is said to wait for its storage."""
    return (await manager.show(job_id)).storage.startswith("waits: file://")


def trained(run: FakeRun) -> None:
    """Two epochs with their checkpoints."""
    begun(run)
    for epoch in (1, 2):
        run.step(float(epoch))
        folder = write_checkpoint(run.run_dir, epoch * 1000, b"after epoch %d" % epoch)
        run.emit("checkpoint", path=str(folder), epoch=epoch, examples=epoch * 1000)


def begun(run: FakeRun) -> None:
    run.state(State.STARTING)
    run.state(State.RUNNING)


def to_the_end(run: FakeRun) -> None:
    trained(run)
    (run.run_dir / "model.safetensors").write_bytes(b"finished")
    run.succeed()


SPEC = parse_spec({"epochs": 3, "retries": 1})


def test_another_machine_shows_hands_out_and_forks_what_the_first_trained(
    serving: Serving, runs: FakeRuns, tmp_path: Path
) -> None:
    async def scenario() -> None:
        runs.script = to_the_end
        async with serving("first") as manager:
            job, _ = await manager.submit(SPEC)
            await reached(manager, job.id, State.SUCCEEDED)
            told = await all_events(manager, job.id)
            await copied(manager, job.id)
        lose(tmp_path)
        runs.script = lambda run: None
        async with serving("second") as manager:
            assert await all_events(manager, job.id) == told
            here = tmp_path / "second" / "runs"
            assert (await manager.show(job.id)).run_dir == str(here / job.id)
            assert (here / job.id / "model.safetensors").read_bytes() == b"finished"
            assert [one.step for one in await manager.checkpoints(job.id)] == ["000000001000", "000000002000"]
            file = await manager.checkpoint_file(job.id, "000000001000", "model.safetensors")
            assert b"".join(chunks(file)) == b"after epoch 1"
            forked, _ = await manager.fork(job.id, {})
            run = await started(runs, forked.id)
            begin = here / forked.id / "checkpoints" / "000000002000"
            assert run.spec.checkpoint.resume == str(begin)
            assert (begin / "model.safetensors").read_bytes() == b"after epoch 2"

    asyncio.run(scenario())


@pytest.mark.parametrize("last", [State.PAUSED, State.RUNNING])
def test_a_job_goes_on_from_its_last_copy(serving: Serving, runs: FakeRuns, tmp_path: Path, last: State) -> None:
    async def scenario() -> None:
        runs.script = trained
        async with serving("first") as manager:
            job, _ = await manager.submit(SPEC)
            run = await started(runs, job.id)
            if last is State.PAUSED:
                await reached(manager, job.id, State.RUNNING)
                await manager.pause(job.id)
                run.state(State.PAUSED)
                await reached(manager, job.id, State.PAUSED)
            copies = Storage.open(f"file://{tmp_path}/copies")
            await eventually(lambda: asyncio.to_thread(has_step, copies, job.id, b"000000002000"))
        if run.alive:
            run.die()
        del runs.runs[job.id]
        lose(tmp_path)
        runs.script = begun
        async with serving("second") as manager:
            if last is State.PAUSED:
                await manager.resume(job.id)
            again = await started(runs, job.id)
            assert again.run_dir == tmp_path / "second" / "runs" / job.id
            assert str(again.spec.checkpoint.resume).endswith("/checkpoints/000000002000")
            await reached(manager, job.id, State.RUNNING)
            again.succeed()
            seqs = [event.seq for event in await all_events(manager, job.id)]
            assert seqs == list(range(1, len(seqs) + 1))

    asyncio.run(scenario())


def has_step(storage: Storage, job_id: str, step: bytes) -> bool:
    try:
        found = [name for name in storage.sizes(job_id) if name.startswith("manifests/")]
        return any(step in storage.read(f"{job_id}/{name}", 1 << 20) for name in found)
    except (StorageUnreachable, FileNotFoundError):  # it is not in use yet; it has just been replaced
        return False


def test_while_the_storage_does_not_answer_no_job_is_given_up(serving: Serving, runs: FakeRuns, tmp_path: Path) -> None:
    async def scenario() -> None:
        runs.script = trained
        async with serving("first") as manager:
            job, _ = await manager.submit(SPEC)
            run = await started(runs, job.id)
            await reached(manager, job.id, State.RUNNING)
            copies = Storage.open(f"file://{tmp_path}/copies")
            await eventually(lambda: asyncio.to_thread(has_step, copies, job.id, b"000000002000"))
        run.die()
        del runs.runs[job.id]
        lose(tmp_path)
        runs.script = begun
        (tmp_path / "copies").rename(tmp_path / "unplugged")
        (tmp_path / "copies").write_text("no folder")
        async with serving("second") as manager:
            await eventually(lambda: waits(manager, job.id))
            assert (await manager.show(job.id)).state is State.RUNNING
            for ask in (manager.events(job.id), manager.checkpoints(job.id), manager.cancel(job.id)):
                with pytest.raises(StorageUnreachable):
                    await ask
            assert not runs.runs
            (tmp_path / "copies").unlink()
            (tmp_path / "unplugged").rename(tmp_path / "copies")
            again = await started(runs, job.id)
            assert again.spec.checkpoint.resume is not None
            await reached(manager, job.id, State.RUNNING)

    asyncio.run(scenario())


def test_a_job_that_has_only_waited_needs_no_storage(serving: Serving, runs: FakeRuns, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving("first") as manager:
            first, _ = await manager.submit(parse_spec({"workers": 4}))
            waiting, _ = await manager.submit(parse_spec({"workers": 4}))
            (await started(runs, first.id)).succeed()
            await reached(manager, first.id, State.SUCCEEDED)
            await started(runs, waiting.id)
            last, _ = await manager.submit(SPEC)
            assert (await manager.show(last.id)).storage == "has nothing to copy yet"
        (tmp_path / "copies").rename(tmp_path / "unplugged")
        (tmp_path / "copies").write_text("no folder")
        async with serving("first") as manager:
            await eventually(lambda: waits(manager, waiting.id))
            assert [event.seq for event in await manager.events_so_far(last.id, 0, 10)] == [1]
            runs.runs[waiting.id].succeed()
            (await started(runs, last.id)).succeed()
            await reached(manager, last.id, State.SUCCEEDED)

    asyncio.run(scenario())


def test_a_storage_that_fails_never_holds_up_a_run(serving: Serving, runs: FakeRuns, tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "copies").write_text("no folder")
        runs.script = to_the_end
        async with serving("first") as manager:
            job, _ = await manager.submit(SPEC)
            await reached(manager, job.id, State.SUCCEEDED)
            await eventually(lambda: waits(manager, job.id))
            text = manager.metrics.text().decode()
            assert "millrace_storage_reachable 0.0" in text
            assert "millrace_storage_due_runs 1.0" in text
            (tmp_path / "copies").unlink()
            await copied(manager, job.id)
            assert "millrace_storage_reachable 1.0" in manager.metrics.text().decode()

    asyncio.run(scenario())


def test_a_copy_is_removed_with_its_job(serving: Serving, runs: FakeRuns, tmp_path: Path) -> None:
    async def scenario() -> None:
        runs.script = to_the_end
        async with serving("first") as manager:
            job, _ = await manager.submit(SPEC.model_copy(update={"ttl_s": 1000.0}))
            kept, _ = await manager.submit(SPEC)
            for one in (job, kept):
                await reached(manager, one.id, State.SUCCEEDED)
                await copied(manager, one.id)
            await eventually(lambda: is_removed(manager, job.id))
            storage = Storage.open(f"file://{tmp_path}/copies")
            await eventually(lambda: asyncio.to_thread(lambda: not storage.sizes(job.id)))
            assert storage.sizes(kept.id)
            assert not (tmp_path / "first" / "runs" / job.id).exists()

    async def is_removed(manager: JobManager, job_id: str) -> bool:
        await asyncio.to_thread(manager.removal.remove_expired, time.time() + 2000)
        try:
            await manager.events(job_id)
        except JobNotFound:
            return True
        return False

    asyncio.run(scenario())


def test_a_damaged_copy_is_told_of_and_a_job_without_one_is_as_before(
    serving: Serving, runs: FakeRuns, tmp_path: Path
) -> None:
    async def scenario() -> None:
        runs.script = to_the_end
        async with serving("first") as manager:
            damaged, _ = await manager.submit(SPEC)
            never, _ = await manager.submit(SPEC)
            for one in (damaged, never):
                await reached(manager, one.id, State.SUCCEEDED)
                await copied(manager, one.id)
        lose(tmp_path)
        shutil.rmtree(tmp_path / "copies" / never.id)
        next((tmp_path / "copies" / damaged.id / "objects").iterdir()).write_bytes(b"spoilt")
        async with serving("second") as manager:
            with pytest.raises(CopyDamaged):
                await manager.fork(damaged.id, {})
            assert await manager.checkpoints(never.id) == []
            with pytest.raises(CheckpointNotFound):
                await manager.checkpoint_file(never.id, "000000001000", "model.safetensors")

    asyncio.run(scenario())


@pytest.mark.parametrize("last", [State.PAUSED, State.SUCCEEDED])
def test_what_the_store_knows_holds_where_the_copy_had_not_heard_of_it(
    serving: Serving, runs: FakeRuns, tmp_path: Path, last: State
) -> None:
    async def scenario() -> None:
        runs.script = trained
        async with serving("first") as manager:
            job, _ = await manager.submit(SPEC)
            run = await started(runs, job.id)
            copies = Storage.open(f"file://{tmp_path}/copies")
            await eventually(lambda: asyncio.to_thread(has_step, copies, job.id, b"000000002000"))
            assert manager.mirror is not None
            manager.mirror.close()
            run.state(last, "Told", "by the coordinator")
            await eventually(lambda: knows(manager, job.id))
        del runs.runs[job.id]
        lose(tmp_path)
        async with serving("second") as manager:
            events = manager.events_so_far(job.id, 0, 100)
            assert [event.data["state"] for event in await events if event.type == "state"][-1] == last
            assert (await manager.show(job.id)).state is last
            assert not runs.runs

    async def knows(manager: JobManager, job_id: str) -> bool:
        return manager.store.get(job_id).state is last

    asyncio.run(scenario())
