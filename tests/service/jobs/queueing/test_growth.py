"""On a cluster with an autoscaler jobs start for which there is no room yet, and not more of them than it may get."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from service.errors import NeverFits
from service.jobs import active_jobs
from service.jobs.manager import JobManager
from service.jobs.queueing.growth import Growth
from service.spec import JobSpec, parse_spec
from tests.service.conftest import Managed, eventually, reached, started
from tests.service.fakes import FakeRun, FakeRuns
from trainers import NO_ROOM, NodeGroup, Resources, State

EIGHT = Growth((NodeGroup(nodes=4, cpus=2),))


@pytest.fixture
def runs(runs: FakeRuns) -> FakeRuns:
    """On a cluster without workers."""
    runs.total = Resources(0, 0)
    return runs


def job(workers: int, least: int = 1, **fields: object) -> JobSpec:
    return parse_spec({"epochs": 4, "workers": {"count": workers, "min": least}} | fields)


async def running(manager: JobManager, runs: FakeRuns, job_id: str, workers: int) -> FakeRun:
    """A run that has its workers."""
    run = await started(runs, job_id)
    run.emit("actors", workers=[{"name": f"worker/{i}"} for i in range(workers)])
    run.state(State.RUNNING)
    await reached(manager, job_id, State.RUNNING)
    return run


def test_a_job_starts_on_a_cluster_that_has_no_worker_yet(managed: Managed, runs: FakeRuns) -> None:
    async def scenario() -> None:
        async with managed(growth=EIGHT) as manager:
            accepted, _ = await manager.submit(job(4))
            run = await started(runs, accepted.id)
            said = "waits for the cluster to grow: 4 of 4 workers of 1 CPU have no room yet"
            run.state(State.STARTING, NO_ROOM, said)

            async def is_told() -> bool:
                return (await manager.show(accepted.id)).reason == NO_ROOM

            await eventually(is_told)
            shown = await manager.show(accepted.id)
            assert (shown.state, shown.message) == (State.STARTING, said)

    asyncio.run(scenario())


def test_without_an_autoscaler_the_same_job_is_refused(managed: Managed, runs: FakeRuns) -> None:
    async def scenario() -> None:
        async with managed() as manager:
            with pytest.raises(NeverFits, match="if an autoscaler adds nodes to it, say in the settings which"):
                await manager.submit(job(4))
        async with managed(growth=EIGHT) as manager:
            with pytest.raises(NeverFits, match="may grow to 4 nodes of 2 CPUs"):
                await manager.submit(job(9))
            with pytest.raises(NeverFits, match="a worker of 3 CPUs finds no room"):
                await manager.submit(parse_spec({"workers": {"count": 1, "cpus": 3}}))

    asyncio.run(scenario())


def test_together_they_wait_for_no_more_than_the_cluster_may_get(managed: Managed, runs: FakeRuns) -> None:
    """First nothing is there, then half of it, then all."""

    async def scenario() -> None:
        async with managed(growth=EIGHT) as manager:
            first, second, third = [(await manager.submit(job(count)))[0] for count in (4, 3, 2)]
            await started(runs, first.id)
            await started(runs, second.id)  # beside it, although neither has a worker
            await manager.queue.measure()
            assert (manager.queue.free, manager.queue.promised) == (Resources(1, 0), Resources(1, 0))

            async def is_told() -> bool:
                why = (await manager.show(third.id)).message
                return why.startswith("first in the queue: waits for 1 CPU held by")

            await eventually(is_told)
            runs.total = Resources(4, 0)
            await running(manager, runs, first.id, 4)
            runs.total = Resources(8, 0)
            run = await running(manager, runs, second.id, 3)
            await manager.queue.measure()
            assert (manager.queue.free, third.id in runs.runs) == (Resources(1, 0), False)
            run.succeed()
            await started(runs, third.id)

    asyncio.run(scenario())


def test_after_a_restart_of_the_service_those_that_wait_for_nodes_count(managed: Managed, runs: FakeRuns) -> None:
    async def scenario() -> None:
        async with managed(growth=EIGHT) as manager:
            first, _ = await manager.submit(job(6))
            (await started(runs, first.id)).state(State.STARTING, NO_ROOM, "waits for the cluster to grow")
        async with managed(growth=EIGHT) as manager:
            second, _ = await manager.submit(job(3))
            await manager.queue.measure()
            assert manager.queue.free == Resources(2, 0)
            assert (await manager.show(second.id)).state is State.QUEUED
            runs.runs[first.id].state(State.CANCELLED)
            await started(runs, second.id)

    asyncio.run(scenario())


def test_the_cluster_grows_before_a_running_job_gives_up_workers(managed: Managed, runs: FakeRuns) -> None:
    """Then it gives what is lacking, and no more than it may."""

    async def scenario() -> None:
        async with managed(growth=EIGHT) as manager:
            runs.total = Resources(4, 0)
            large, _ = await manager.submit(job(4, least=2))
            run = await running(manager, runs, large.id, 4)
            urgent, _ = await manager.submit(job(4, priority=1))
            await started(runs, urgent.id)
            assert run.size == 4
            runs.total = Resources(8, 0)
            await running(manager, runs, urgent.id, 4)
            other, _ = await manager.submit(job(3, priority=2))
            await started(runs, other.id)
            held = {claim.job_id: claim.size.now for claim in manager.queue.held.values()}
            assert held == {large.id: 2, urgent.id: 3, other.id: 3}

    asyncio.run(scenario())


def test_a_deadline_that_passes_meanwhile_says_what_was_lacking(
    managed: Managed, runs: FakeRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "waits for room: 2 of 2 workers of 1 CPU have no room, and Ray's autoscaler adds no node to the cluster"

    async def scenario() -> None:
        async with managed(growth=EIGHT) as manager:
            accepted, _ = await manager.submit(job(2, deadline_s=5000))
            run = await started(runs, accepted.id)
            run.state(State.STARTING, NO_ROOM, said)

            async def is_told() -> bool:
                return (await manager.show(accepted.id)).reason == NO_ROOM

            await eventually(is_told)
            monkeypatch.setattr(active_jobs, "time", SimpleNamespace(time=lambda: time.time() + 5001))
            assert await asyncio.to_thread(run.cancelled.wait, 30)
            run.state(State.CANCELLED, "Cancelled", "cancelled before the first step")
            ended = await reached(manager, accepted.id, State.CANCELLED)
            assert ended.reason == "DeadlineExceeded"
            assert ended.message.endswith(f"its deadline, 5000 s after its submission, has passed; it still {said}")

    asyncio.run(scenario())
