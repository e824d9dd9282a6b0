"""Jobs that nobody moves are taken up; those that somebody moves are left alone, however long it takes."""

import asyncio
import threading
from pathlib import Path

import pytest

from service.database.job_query import Query
from service.errors import SpecUnreadable
from service.jobs.manager import JobManager, JobView
from service.spec import parse_spec
from service.status import Status
from service.sweeps.listing import SweepQuery
from service.sweeps.manager import SweepManager
from service.sweeps.spec import parse_sweep
from service.sweeps.trial_store import TrialStore
from tests.service.conftest import Managed, all_events, eventually, reached, started
from tests.service.fakes import FakeRuns
from trainers.events import State

SPEC = parse_spec({"name": "a"})

pytestmark = pytest.mark.parametrize("url", ["sqlite"], indirect=True)


async def left_in(manager: JobManager, runs: FakeRuns, state: State) -> JobView:
    """A job in a state, at which nobody works: as if what changed its state had failed in the middle."""
    blocked, _ = await manager.submit(parse_spec({"workers": 4}))
    await started(runs, blocked.id)
    job, _ = await manager.submit(SPEC)
    manager.queue.remove(job.id)
    assert await manager.lifecycle.move(job.id, (State.QUEUED,), Status(state, "Left", "by whoever moved it"))
    runs.runs[blocked.id].succeed()
    await reached(manager, blocked.id, State.SUCCEEDED)
    return job


@pytest.mark.parametrize(
    ("state", "becomes"),
    [
        (State.STARTING, State.RUNNING),
        (State.QUEUED, State.RUNNING),
        (State.CANCELLING, State.CANCELLED),
        (State.PAUSING, State.PAUSED),
    ],
)
def test_a_state_that_nobody_moves_ends(state: State, becomes: State, managed: Managed, runs: FakeRuns) -> None:
    async def scenario() -> None:
        async with managed() as manager:
            job = await left_in(manager, runs, state)
            runs.script = lambda run: run.state(State.RUNNING)
            await manager.watchdog.look()
            assert (await manager.show(job.id)).state is state  # it may be between two steps of a change
            await manager.watchdog.look()
            await reached(manager, job.id, becomes)
            if becomes is State.RUNNING:
                runs.runs[job.id].succeed()
                await reached(manager, job.id, State.SUCCEEDED)
            numbers = [event.seq for event in await all_events(manager, job.id)] if becomes.is_terminal else [1]
            assert numbers == list(range(1, len(numbers) + 1))

    asyncio.run(scenario())


def test_a_run_whose_log_nobody_follows_any_more_is_followed_again(managed: Managed, runs: FakeRuns) -> None:
    async def scenario() -> None:
        async with managed() as manager:
            job, _ = await manager.submit(SPEC)
            run = await started(runs, job.id)
            run.state(State.RUNNING)
            await reached(manager, job.id, State.RUNNING)
            follower = manager.active[job.id].follower
            assert follower is not None
            follower.cancel()
            run.step(1.0)
            run.succeed()
            await manager.watchdog.look()
            await manager.watchdog.look()
            await reached(manager, job.id, State.SUCCEEDED)

    asyncio.run(scenario())


def test_a_coordinator_that_has_not_heard_of_its_end_is_told_again(managed: Managed, runs: FakeRuns) -> None:
    async def scenario() -> None:
        async with managed() as manager:
            job, _ = await manager.submit(SPEC)
            run = await started(runs, job.id)
            run.state(State.RUNNING)
            await reached(manager, job.id, State.RUNNING)
            cancelling = Status(State.CANCELLING, "CancelRequested", "stops with a checkpoint")
            assert await manager.lifecycle.move(job.id, (State.RUNNING,), cancelling)  # and then Ray did not answer
            await manager.watchdog.look()
            assert run.cancels == 0
            run.step(1.0)
            await manager.watchdog.look()
            assert run.cancels == 1
            run.state(State.CANCELLING)
            run.state(State.CANCELLED)
            await reached(manager, job.id, State.CANCELLED)

    asyncio.run(scenario())


def test_what_takes_long_is_left_alone(managed: Managed, runs: FakeRuns) -> None:
    async def scenario() -> None:
        async with managed() as manager:
            runs.may_start = threading.Event()
            job, _ = await manager.submit(SPEC)
            await reached(manager, job.id, State.STARTING)
            waiting, _ = await manager.submit(parse_spec({"workers": 4}))
            paused, _ = await manager.submit(SPEC)
            await manager.pause(paused.id)
            for _ in range(5):
                await manager.watchdog.look()
            runs.may_start.set()
            run = await started(runs, job.id)
            for _ in range(5):
                await manager.watchdog.look()
            run.state(State.RUNNING)
            await manager.cancel(job.id)
            for _ in range(3):
                await manager.watchdog.look()
            run.state(State.CANCELLING)
            await eventually(lambda: _is_known(manager, job.id, State.CANCELLING))
            for _ in range(5):
                await manager.watchdog.look()
            assert manager.watchdog.suspects == {}
            run.state(State.CANCELLED)
            await reached(manager, job.id, State.CANCELLED)
            assert runs.order.count(job.id) == 1
            assert (await manager.show(paused.id)).state is State.PAUSED
            await reached(manager, waiting.id, State.STARTING)

    asyncio.run(scenario())


def test_a_spec_that_a_newer_version_stored_is_left_alone_and_said_once(
    managed: Managed, runs: FakeRuns, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with managed() as manager:
            blocked, _ = await manager.submit(parse_spec({"workers": 4}))
            await started(runs, blocked.id)
            newer, _ = await manager.submit(SPEC)
            other, _ = await manager.submit(SPEC)
            spec = {"spec": manager.store.get(newer.id).spec | {"novel": 1}}
            assert manager.store._update(newer.id, list(State), spec)
        async with managed() as manager:
            runs.script = lambda run: run.state(State.RUNNING)
            runs.runs[blocked.id].succeed()
            await reached(manager, other.id, State.RUNNING)
            for _ in range(3):
                await manager.watchdog.look()
            with pytest.raises(SpecUnreadable, match=r"another version stored \(/novel: "):
                await manager.show(newer.id)
            with pytest.raises(SpecUnreadable):
                await manager.cancel(newer.id)
            (listed,) = [one for one in (await manager.page(Query())).jobs if one.id == newer.id]
            assert (listed.state, newer.id in listed.message) == (State.QUEUED, True)
            said = [one for one in caplog.records if newer.id in one.getMessage()]
            assert len(said) == 1
            assert said[0].exc_info is None

    asyncio.run(scenario())


def test_a_sweep_that_a_newer_version_stored_is_listed_and_left_alone(
    managed: Managed, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = parse_sweep({"job": {"data": "digits", "model": "mlp"}, "axes": {"seed": [1, 2]}})
    store = TrialStore(tmp_path / "sweeps" / "sweep-newer")
    store.create("sweep-newer", spec)
    with store.writing() as db:
        store._set(db, spec=spec.model_dump(mode="json") | {"novel": 1})

    async def scenario() -> None:
        async with managed() as manager:
            sweeps = SweepManager(manager, tmp_path / "sweeps", tmp_path)
            await sweeps.start()
            assert [(one.id, one.state) for one in (await sweeps.page(SweepQuery())).sweeps] == [
                ("sweep-newer", State.QUEUED)
            ]
            assert not sweeps.followers
            await sweeps.stop()

    asyncio.run(scenario())
    assert len([one for one in caplog.records if "/novel: " in one.getMessage()]) == 1


async def _is_known(manager: JobManager, job_id: str, state: State) -> bool:
    active = manager.active.get(job_id)
    return active is not None and active.log.progress.state is state
