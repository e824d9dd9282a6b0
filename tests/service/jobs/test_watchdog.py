"""Jobs that nobody moves are taken up; those that somebody moves are left alone, however long it takes."""

import asyncio
import threading

import pytest

from service.jobs.manager import JobManager, JobView
from service.spec import parse_spec
from service.status import Status
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


async def _is_known(manager: JobManager, job_id: str, state: State) -> bool:
    active = manager.active.get(job_id)
    return active is not None and active.log.progress.state is state
