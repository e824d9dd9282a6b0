"""Trials wait in the queue of jobs: within what their user may have, by priority, until their deadline; without Ray."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from service import SweepManager, TrialStore, parse_sweep
from service.errors import NeverFits
from service.jobs.manager import JobManager
from service.jobs.queueing.claims import Quotas
from service.spec import parse_spec
from service.status import Status
from service.sweeps import control
from service.sweeps.trial_store import Ending, TrialState
from service.sweeps.turns import Turns
from tests.service import sqlite
from tests.service.conftest import Managed, eventually, started
from tests.service.fakes import FakeRuns
from trainers import Resources, State

DONE = Ending(state=TrialState.SUCCEEDED, reason="Succeeded", message="")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return sqlite.create_database(tmp_path / "jobs.db")


def sweep_spec(job: dict[str, Any], num_trials: int = 3, **fields: Any) -> Any:
    return parse_sweep({"job": {"workers": 1} | job, "axes": {"seed": [*range(num_trials)]}, **fields})


async def begun(jobs: JobManager, folder: Path, spec: Any, user: str) -> tuple[SweepManager, TrialStore]:
    """A sweep as the service keeps it, whose driver is the test."""
    sweeps = SweepManager(jobs, folder / "sweeps", folder)
    store = control.begin(folder / "sweeps" / "sweep-1", "sweep-1", spec, user=user)
    Turns(store).require(True)
    await sweeps._add_trials(store)
    return sweeps, store


async def has_turns(sweeps: SweepManager, store: TrialStore, count: int) -> None:
    async def holds() -> bool:
        await sweeps.queue.look(store)
        return len(Turns(store).given) == count

    await eventually(holds)


def test_a_user_who_may_run_one_job_runs_one_trial(managed: Managed, runs: FakeRuns, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with managed(quotas=Quotas(running_jobs=1)) as jobs:
            own, _ = await jobs.submit(parse_spec({"workers": 1}), user="ann")
            run = await started(runs, own.id)
            sweeps, store = await begun(jobs, tmp_path, sweep_spec({}), "ann")
            await sweeps.queue.look(store)
            assert len(jobs.queue.waiting) == 3
            assert not Turns(store).leave_work, "no driver is needed as long as all wait"

            async def is_told() -> bool:
                return (await jobs.show(store.trials()[0].id)).reason == "UserLimit"

            await eventually(is_told)
            shown = await jobs.show(store.trials()[0].id)
            assert "ann may run 1 job at once" in shown.message
            run.succeed()
            for done in range(3):
                await has_turns(sweeps, store, done + 1)
                for _ in range(3):
                    await asyncio.sleep(0.05)
                    await sweeps.queue.look(store)
                row = store.next_queued(but=Turns(store).excluded(store.progress()))
                assert row is not None
                assert len(Turns(store).given) == done + 1, "the others wait"
                store.begin(row.id)
                await sweeps.queue.look(store)
                assert row.id in jobs.queue.held
                store.finish(row.id, DONE)
            await sweeps.queue.look(store)
            assert not jobs.queue.held
            assert Turns(store).leave_work, "a driver ends the sweep"

    asyncio.run(scenario())


def test_a_job_of_higher_priority_goes_before_trials(managed: Managed, runs: FakeRuns, tmp_path: Path) -> None:
    async def scenario() -> None:
        runs.total = Resources(cpus=1, gpus=0)
        async with managed() as jobs:
            first, _ = await jobs.submit(parse_spec({"workers": 1}), user="bob")
            run = await started(runs, first.id)
            sweeps, store = await begun(jobs, tmp_path, sweep_spec({"priority": 3}, limits={"concurrent": 2}), "ann")
            await sweeps.queue.look(store)
            assert len(jobs.queue.waiting) == 2, "no more than may run at a time"
            later, _ = await jobs.submit(parse_spec({"workers": 1}), user="bob")
            urgent, _ = await jobs.submit(parse_spec({"workers": 1, "priority": 9}), user="bob")
            run.succeed()
            (await started(runs, urgent.id)).succeed()
            await has_turns(sweeps, store, 1)
            assert later.id not in runs.runs
            assert store.move((State.QUEUED,), Status(State.PAUSED, "PauseRequested", ""))
            Turns(store).withdraw()
            await sweeps.queue.look(store)
            await started(runs, later.id)  # a paused sweep holds nothing

    asyncio.run(scenario())


def test_a_trial_that_waits_ends_at_its_deadline(managed: Managed, runs: FakeRuns, tmp_path: Path) -> None:
    async def scenario() -> None:
        runs.total = Resources(cpus=1, gpus=0)
        async with managed() as jobs:
            await started(runs, (await jobs.submit(parse_spec({"workers": 1})))[0].id)
            sweeps, store = await begun(jobs, tmp_path, sweep_spec({"deadline_s": 0.001}, 1), "ann")
            await asyncio.sleep(0.01)
            await sweeps.queue.look(store)
            await sweeps._note_ends(store)
            (row,) = store.trials()
            assert (row.state, row.reason) == ("CANCELLED", "DeadlineExceeded")
            shown = await jobs.show(row.id)
            assert (shown.state, shown.reason) == (State.CANCELLED, "DeadlineExceeded")
            assert "its deadline, 0.001 s after its submission, has passed" in shown.message

    asyncio.run(scenario())


def test_a_trial_that_its_user_may_never_run_is_refused(managed: Managed, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with managed(quotas=Quotas(cpus=1)) as jobs:
            sweeps = SweepManager(jobs, tmp_path / "sweeps", tmp_path)
            with pytest.raises(NeverFits, match=r"a trial needs 2 CPUs .* ann may hold 1 CPUs at once"):
                await sweeps.check(sweep_spec({"workers": 2}), "ann")

    asyncio.run(scenario())
