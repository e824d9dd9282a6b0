"""Preflights: what waiting jobs are checked, when, and what is said of one that cannot run."""

import asyncio

import pytest

from service.jobs.starting import preflights
from service.spec import parse_spec
from tests.service.conftest import Managed, all_events, reached, small, started
from tests.service.fakes import FakeRuns
from trainers.errors import DataNotFound
from trainers.events import State


def test_a_waiting_job_that_cannot_run_is_told_at_once(managed: Managed, runs: FakeRuns) -> None:
    async def scenario() -> None:
        async with managed() as manager:
            runs.preflight_error = DataNotFound("no MNIST in /nowhere; set data.download to true")
            first, _ = await manager.submit(parse_spec(small(workers=4)))
            await started(runs, first.id)
            job, _ = await manager.submit(parse_spec(small(workers=4)))
            job = await reached(manager, job.id, State.FAILED)
            assert (job.reason, job.message) == ("DataNotFound", str(runs.preflight_error))
            assert (await all_events(manager, job.id))[-1].data["reason"] == "DataNotFound"
            assert list(runs.runs) == [first.id]

    asyncio.run(scenario())


@pytest.mark.parametrize(("calm_s", "latest_s"), [(0.05, 3600.0), (3600.0, 0.05)])
def test_waiting_jobs_are_checked_once_none_comes_or_at_the_latest(
    managed: Managed, runs: FakeRuns, monkeypatch: pytest.MonkeyPatch, calm_s: float, latest_s: float
) -> None:
    monkeypatch.setattr(preflights, "CALM_S", calm_s)
    monkeypatch.setattr(preflights, "LATEST_S", latest_s)

    async def scenario() -> None:
        async with managed() as manager:
            first, _ = await manager.submit(parse_spec(small(workers=4)))
            await started(runs, first.id)
            await manager.submit(parse_spec(small(workers=4)))
            while not runs.checked:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_of_waiting_jobs_that_differ_in_their_seed_one_is_checked(managed: Managed, runs: FakeRuns) -> None:
    async def scenario() -> None:
        async with managed() as manager:
            first, _ = await manager.submit(parse_spec(small(workers=4)))
            await started(runs, first.id)
            for seed in (1, 2, 3):
                await manager.submit(parse_spec(small(workers=4, seed=seed, name=f"seed-{seed}")))
            await manager.submit(parse_spec(small(workers=4, batch=8)))
            last, _ = await manager.submit(parse_spec(small(workers=4, seed=4)))
            while last.id not in manager.queue.checked:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert manager.admission.preflights.task is not None
            await manager.admission.preflights.task
            assert [spec.batch.per_worker for spec in runs.checked] == [parse_spec(small()).batch.per_worker, 8]

    asyncio.run(scenario())
