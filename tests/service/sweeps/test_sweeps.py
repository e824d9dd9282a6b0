"""Sweeps on a real Ray: killed and taken up again, extended, poisoned, paused, cancelled."""

import asyncio
import os
import signal
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from service import TrialStore, TuningReport, report_text
from service.sweeps.trial_curve import read_curve
from tests.runtime.test_runs import assert_same_bits, on_the_local_transport, parameters
from tests.service.sweeps.managed_sweeps import kill_driver, managed, nothing_left, spec, until
from tests.service.sweeps.sleeping_trial import Sleeping, hold
from trainers import ClusterInfo, EventLogReader, State, available_resources
from trainers.runtime.node_folder import where

MODEL: Any = "bohb" if find_spec("hpbandster") else {"name": "optuna", "halving": {"grace_epochs": 1}}
pytestmark = [pytest.mark.long, pytest.mark.usefixtures("cluster")]


def ends(store: TrialStore) -> Counter[str]:
    """How often the log of each trial tells that it was trained to its end."""
    found: Counter[str] = Counter()
    for row in store.trials():
        for event in EventLogReader(store.run_dir(row.id)).read():
            found[row.id] += event.type == "state" and event.data["state"] == "SUCCEEDED"
    return found


async def num_done(store: TrialStore) -> int:
    return sum(row.state.has_ended for row in store.trials())


@pytest.mark.timeout(600)
@pytest.mark.parametrize("trainable", [Sleeping, pytest.param(None, marks=pytest.mark.slow)])
def test_a_sweep_killed_twice_completes_each_configuration_once_and_is_extended_afterwards(
    tmp_path: Path, cluster: ClusterInfo, trainable: Any
) -> None:
    held = hold(tmp_path, batch=8, seed=3)  # so that there is somebody to interrupt, however fast the others are

    async def story() -> None:
        async with managed(tmp_path, trainable) as sweeps:
            wanted = spec({"batch": [8, 16, 32], "seed": [0, 1, 2, 3]}, {"epochs": 4, "report_every_s": 0.25})
            shown, _ = await sweeps.submit(wanted, "twice")
            again, is_new = await sweeps.submit(wanted, "twice")
            assert (again.id, is_new) == (shown.id, False)
            store = TrialStore(Path(shown.folder))
            assert len(shown.results) == 12

            async def some(count: int) -> bool:
                return await num_done(store) >= count

            async def is_amid() -> bool:
                """Whether the trial that is held has left a checkpoint."""
                trains = {row.id: row.job_spec.train for row in store.trials()}
                trial = next(id for id, train in trains.items() if (train.global_batch, train.seed) == (8, 3))
                return any((store.run_dir(trial) / "checkpoints").glob("[0-9]*"))

            async def is_driven_again() -> bool:
                return store.driver >= 2

            await until(lambda: some(3))
            await until(is_amid)
            kill_driver(shown.id)
            await until(is_driven_again)
            await until(lambda: some(6))
        # The service is gone, the driver goes on by itself; then both are.
        before = await num_done(store)
        kill_driver(shown.id)
        held.unlink()
        async with managed(tmp_path, trainable) as sweeps:
            events = [event async for batch in await sweeps.events(shown.id) for event in batch]
            done = await sweeps.show(shown.id)
            assert (done.state, done.progress) == (State.SUCCEEDED, 1.0), done.message
            assert before < 12
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            assert set(ends(store).values()) == {1}
            assert len(ends(store)) == 12
            starts = {row.id: row.starts for row in store.trials()}
            assert sum(starts.values()) > 12  # somebody was interrupted, and went on
            job = await sweeps.jobs.show(done.results[0].id)
            assert (job.state, job.labels["sweep"]) == (State.SUCCEEDED, shown.id)

            more = await sweeps.extend(shown.id, {"seed": [4, 5]}, {})
            assert len(more.results) == 18
            await until(lambda: some(18))
            async for _ in await sweeps.events(shown.id, events[-1].seq):
                pass
            assert (await sweeps.show(shown.id)).state is State.SUCCEEDED
            assert {row.id: row.starts for row in store.trials() if row.id in starts} == starts
            assert set(ends(store).values()) == {1}
            assert (await sweeps.jobs.show(more.results[-1].id)).state is State.SUCCEEDED
        nothing_left(shown.id, [row.id for row in store.trials()])

    asyncio.run(story())


@pytest.mark.timeout(600)
def test_a_trial_that_fails_is_listed_and_the_others_go_on(tmp_path: Path, cluster: ClusterInfo) -> None:
    async def story() -> None:
        async with managed(tmp_path) as sweeps:
            axes = {"checkpoint.resume": ["/nowhere", None], "seed": [3, 4]}
            shown, _ = await sweeps.submit(spec(axes, limits={"concurrent": 1}))
            async for _ in await sweeps.events(shown.id):
                pass
            done = await sweeps.show(shown.id)
            assert done.state is State.SUCCEEDED
            assert "2 failed" in done.message
            poisoned = [trial for trial in done.results if trial.settings["checkpoint.resume"]]
            others = [trial for trial in done.results if not trial.settings["checkpoint.resume"]]
            assert {(trial.state, trial.reason) for trial in poisoned} == {("FAILED", "SpecRejected")}
            assert all("/nowhere" in trial.message for trial in poisoned)
            assert {trial.state for trial in others} == {"SUCCEEDED"}
            store = TrialStore(Path(shown.folder))
            for row in store.trials()[2:]:  # in the processes of the trials before, the bits of a run by itself
                assert_same_bits(parameters(store.run_dir(row.id)), on_the_local_transport(row.job_spec.train))
            assert (await sweeps.jobs.show(poisoned[0].id)).reason == "SpecRejected"
            assert "SpecRejected" in report_text(await sweeps.report(shown.id))

    asyncio.run(story())


@pytest.mark.timeout(600)
def test_a_trial_whose_process_dies_has_failed_and_the_others_go_on(tmp_path: Path, cluster: ClusterInfo) -> None:
    async def story() -> None:
        hold(tmp_path, batch=8, seed=0)  # until it is killed
        async with managed(tmp_path, Sleeping) as sweeps:
            wanted = spec({"seed": [0, 1, 2]}, {"epochs": 5, "report_every_s": 0.2}, limits={"concurrent": 1})
            shown, _ = await sweeps.submit(wanted)
            store, first = TrialStore(Path(shown.folder)), shown.results[0].id

            async def begun() -> bool:
                return bool(read_curve(store.run_dir(first)).costs)

            await until(begun)
            (told,) = [e.data for e in EventLogReader(store.run_dir(first)).read() if e.type == "actors"]
            os.kill(told["pid"], signal.SIGKILL)
            async for _ in await sweeps.events(shown.id):
                pass
            done = await sweeps.show(shown.id)
            assert [trial.state for trial in done.results] == ["FAILED", "SUCCEEDED", "SUCCEEDED"]
            assert done.results[0].reason == "TrialDied"
            assert (await sweeps.jobs.show(first)).state is State.FAILED

    asyncio.run(story())


@pytest.mark.timeout(600)
def test_paused_resumed_one_trial_stopped_and_then_cancelled_nothing_is_left(
    tmp_path: Path, cluster: ClusterInfo
) -> None:
    async def story() -> None:
        async with managed(tmp_path) as sweeps:
            shown, _ = await sweeps.submit(spec({"seed": [0, 1, 2, 3]}, {"epochs": 100_000, "workers": 1}))
            store, ids = TrialStore(Path(shown.folder)), [trial.id for trial in shown.results]

            async def training() -> bool:
                return any(read_curve(store.run_dir(trial)).costs for trial in ids)

            await until(training)

            async def packed() -> bool:
                return available_resources().cpus == 8 - 2  # the workers are in the trials' bundles, not beside them

            await until(packed)
            assert list(where(shown.id).glob("digits-*")), "the trials share the data"
            assert not [*where(ids[0]).glob("digits-*"), *where(ids[1]).glob("digits-*")]
            paused = await sweeps.pause(shown.id)
            assert paused.state is State.PAUSED
            assert paused.trials["running"] == 0
            nothing_left(shown.id, ids)
            reached = {trial: max(read_curve(store.run_dir(trial)).costs, default=0) for trial in ids}
            furthest = max(ids, key=lambda trial: reached[trial])
            await sweeps.resume(shown.id)

            async def further() -> bool:
                return max(read_curve(store.run_dir(furthest)).costs) > reached[furthest]

            await until(further)
            curve = read_curve(store.run_dir(furthest))
            assert min(epoch for epoch in curve.costs if epoch > reached[furthest]) <= reached[furthest] + 2
            await sweeps.jobs.cancel(furthest)

            async def stopped() -> bool:
                return (await sweeps.jobs.show(furthest)).state is State.CANCELLED

            await until(stopped)
            assert (await sweeps.show(shown.id)).state is State.RUNNING
            await sweeps.cancel(shown.id)
            async for _ in await sweeps.events(shown.id):
                pass
            done = await sweeps.show(shown.id)
            assert done.state is State.CANCELLED
            assert done.trials["cancelled"] == 4
            for trial in ids:
                assert (await sweeps.jobs.show(trial)).state is State.CANCELLED
        nothing_left(shown.id, ids)

    asyncio.run(story())


@pytest.mark.timeout(600)
def test_the_worse_trials_are_stopped_early_and_cleanly(tmp_path: Path, cluster: ClusterInfo) -> None:
    """By halving; and for the curve, since at 15 times the base rate it leaves the baseline's."""

    async def story() -> None:
        async with managed(tmp_path, Sleeping) as sweeps:
            job = {"epochs": 12, "report_every_s": 0.2}
            axes = {"batch": [8, 16], "multiple": [1, 15], "seed": [0, 1]}
            halving = spec(axes, job, search={"name": "asha", "grace_epochs": 2})
            curves = spec(axes, job, stop={"diverges_from_baseline": True}, limits={"concurrent": 4})
            ids = [(await sweeps.submit(one))[0].id for one in (halving, curves)]
            for sweep_id in ids:
                async for _ in await sweeps.events(sweep_id):
                    pass
            first, second = [await sweeps.show(sweep_id) for sweep_id in ids]
            assert {trial.settings["multiple"] for trial in first.results if trial.state == "STOPPED"} == {15}
            stopped = [trial for trial in second.results if trial.state == "STOPPED"]
            assert {trial.settings["multiple"] for trial in stopped} == {15}
            assert all(trial.reason == "DivergesFromBaseline" and trial.progress < 1 for trial in stopped)
            job_view = await sweeps.jobs.show(stopped[0].id)
            assert (job_view.state, job_view.result.state) == (State.CANCELLED, State.CANCELLED)
            assert job_view.reason == "DivergesFromBaseline"
            assert job_view.message.startswith("stopped: its curve left the baseline's: its training loss was ")
            report = await sweeps.report(second.id)
            assert report.trials["stopped"] == len(stopped)

            axes = {"optimizer.lr": {"low": 0.001, "high": 0.02, "log": True}, "seed": [0, 1]}
            third, _ = await sweeps.submit(spec(axes, job, search=MODEL, limits={"trials": 8, "concurrent": 4}))
            async for _ in await sweeps.events(third.id):
                pass
            results = (await sweeps.show(third.id)).results
            assert {trial.reason for trial in results if trial.state == "STOPPED"} <= {"Asha"}
            assert len({trial.settings["optimizer.lr"] for trial in results}) == len(results) == 8
            tuned = await sweeps.report(third.id)
            assert isinstance(tuned, TuningReport)
            assert tuned.best is not None

    asyncio.run(story())
