"""Stops at every moment of a run: its state, its reason and what is kept, without Ray."""

import asyncio
from pathlib import Path

import pytest

from tests.runtime.control.fakes import SYNC_THROUGH_SHARDS, FakeRun, ended, play, small, train_everything
from trainers.events import State, StopReason
from trainers.runtime.control.controller import RunPhase
from trainers.runtime.control.run_events import StopsEarly
from trainers.runtime.control.training import GroupPhase

STARTED = [("STARTING", "Starting"), ("RUNNING", "Training")]


@pytest.mark.parametrize("stops_as", [State.CANCELLED, State.PAUSED])
def test_a_stop_before_the_first_step_ends_the_run_at_once(tmp_path: Path, stops_as: State) -> None:
    async def scenario(run: FakeRun) -> None:
        run.launcher.may_start.clear()
        await run.begins(RunPhase.STARTING)
        run.controller.stop(stops_as)
        await run.settle()
        word = stops_as.lower()
        assert ended(run) == (stops_as.value, word.capitalize(), f"{word} before the first step")

    play(tmp_path, scenario)


@pytest.mark.parametrize(("stops_as", "state"), [(State.CANCELLED, "CANCELLING"), (State.PAUSED, "PAUSING")])
def test_a_stop_while_it_trains_ends_the_step_and_keeps_a_checkpoint(
    tmp_path: Path, stops_as: State, state: str
) -> None:
    async def scenario(run: FakeRun) -> None:
        await run.begins()
        run.controller.stop(stops_as)
        await run.settle()
        assert run.log.states[2:] == [(state, state.capitalize())]
        assert len(run.actor(0).called("hold")) == 1
        await run.ends(0, 1)
        ((snapshot, is_complete),) = run.snapshots.finished
        assert (snapshot.is_last, is_complete) == (True, False)
        assert ended(run) == (stops_as.value, stops_as.capitalize(), f"{stops_as.lower()} after 0 examples")
        assert run.controller.result.state == stops_as.value

    play(tmp_path, scenario)


@pytest.mark.parametrize("phase", [RunPhase.STARTING, RunPhase.TRAINING])
def test_the_reason_of_who_cancels_a_run_is_its_last_word(tmp_path: Path, phase: RunPhase) -> None:
    async def scenario(run: FakeRun) -> None:
        if phase is RunPhase.STARTING:
            run.launcher.may_start.clear()
        await run.begins(phase)
        run.controller.stop(State.CANCELLED, StopReason("DivergesFromBaseline", "stopped: its curve left the others'"))
        await run.settle()
        if phase is RunPhase.TRAINING:
            await run.ends(0, 1)
        when = "before the first step" if phase is RunPhase.STARTING else "after 0 examples"
        message = f"stopped: its curve left the others' (cancelled {when})"
        assert ended(run) == ("CANCELLED", "DivergesFromBaseline", message)

    play(tmp_path, scenario)


def test_a_run_that_gets_no_better_stops_at_the_end_of_a_step_and_has_succeeded(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        await run.begins()
        await run.happens(StopsEarly("loss has not improved on 0.5 in the last 3 evaluations"))
        await run.happens(StopsEarly("loss has not improved on 0.5 in the last 3 evaluations"))
        assert run.log.states == STARTED, "it goes on to be RUNNING"
        assert len(run.actor(0).called("hold")) == 1
        await run.ends(0, 1)
        ((snapshot, is_complete),) = run.snapshots.finished
        assert (snapshot.is_last, is_complete) == (True, False), "so that it can be prolonged"
        message = "stopped early after 0 epochs: loss has not improved on 0.5 in the last 3 evaluations"
        assert ended(run) == ("SUCCEEDED", "StoppedEarly", message)
        assert run.controller.result.state == "SUCCEEDED"

    play(tmp_path, scenario)


def test_who_cancels_a_run_that_stops_early_has_it_cancelled(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        await run.begins()
        await run.happens(StopsEarly("it gets no better"))
        run.controller.stop(State.CANCELLED)
        await run.settle()
        await run.ends(0, 1)
        assert ended(run)[0] == "CANCELLED"

    play(tmp_path, scenario)


def test_a_stop_between_two_generations_has_the_newest_version_handed_on_and_ends(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        await run.begins()
        agreed = asyncio.Event()

        async def agree() -> int:
            await agreed.wait()
            return 1

        run.shards.agree = agree  # type: ignore[method-assign]
        run.pool.room.clear()
        await run.dies(1, 0)
        assert run.training.phases == [GroupPhase.REGROUPING]
        run.controller.stop(State.CANCELLED)
        await run.settle()
        agreed.set()
        await run.settle()
        assert len(run.actor(0).called("train")) == 2
        assert run.actor(0).called("hold") == [(1,)]
        await run.ends(0)
        assert ended(run)[0] == "CANCELLED"

    play(tmp_path, scenario, small(algorithm=SYNC_THROUGH_SHARDS))


def test_a_run_that_waits_for_workers_stops_too(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        await run.begins()
        run.pool.room.clear()
        await run.dies(1, 0)
        run.controller.stop(State.PAUSED)
        await run.settle()
        await run.ends(0)
        assert ended(run)[0] == "PAUSED"

    play(tmp_path, scenario, small(workers={"count": 2, "min": 2, "virtual": 4}))


def test_a_stop_that_comes_when_all_is_trained_changes_nothing(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        await run.begins()
        run.snapshots.may_finish.clear()
        await train_everything(run)
        run.controller.stop(State.CANCELLED)
        await run.settle()
        assert run.log.states[-1] == ("CANCELLING", "Cancelling")
        run.snapshots.may_finish.set()
        await run.settle()
        assert ended(run)[0] == "SUCCEEDED"

    play(tmp_path, scenario)
