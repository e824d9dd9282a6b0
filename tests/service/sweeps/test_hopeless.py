"""Sweeps whose trials all fail alike: they end early, as failed, with the reason once."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from service import SweepSpec, parse_sweep
from service.jobs.queueing.growth import Growth
from service.sweeps.axes import configurations
from service.sweeps.driver import SweepRunner
from service.sweeps.hopeless import common_failure
from service.sweeps.trial_store import Ending, TrialState, TrialStore
from trainers import State

WHY = "there is no dataset in /nowhere; download it"
AXES = {"batch": [4, 8], "optimizer.lr": [0.01, 0.02], "seed": [0, 1]}


def spec(axes: dict[str, Any] | None = None) -> SweepSpec:
    job = {"data": {"name": "digits", "limit": 40}, "model": "mlp", "workers": 1, "batch": {"per_worker": 4, "base": 4}}
    return parse_sweep({"job": job, "axes": axes or AXES})


@pytest.fixture
def store(tmp_path: Path) -> TrialStore:
    return filled(tmp_path, spec())


def filled(folder: Path, wanted: SweepSpec) -> TrialStore:
    store = TrialStore(folder)
    store.create("sweep", wanted)
    store.add(wanted, configurations(wanted))
    return store


class Driver:
    """What Tune does of a sweep, one trial after the other."""

    def __init__(self, store: TrialStore) -> None:
        self.store, self.runner = store, SweepRunner(store, Growth())
        self.runner.searcher = SimpleNamespace(concurrent=None)  # type: ignore[assignment]

    def end(self, reason: str, message: str = WHY, fraction: float = 0.0, state: str = "FAILED") -> bool:
        """Run the next trial to such an end. Returns whether there was one to run."""
        row = self.store.next_queued(but=())
        if row is None or not self.runner._is_open():
            return False
        self.store.begin(row.id)
        figures = dict.fromkeys(("epoch", "examples", "train_loss", "test_error", "metric", "error"))
        result = figures | {"ended": (state, reason, message), "measured": [], "fraction": fraction}
        self.runner.on_trial_result(0, [], SimpleNamespace(config={"trial": row.id}), result)
        return True

    def ended(self) -> tuple[State, str, str]:
        self.runner._tick()
        assert self.runner._close()
        self.runner.log.close()
        assert self.runner.final is not None
        return self.runner.final.state, self.runner.final.reason, self.runner.final.message


def test_what_no_axis_changes_ends_the_sweep_once_each_axis_was_varied(store: TrialStore) -> None:
    driver = Driver(store)
    begun = 0
    while driver.end("DataNotFound"):
        begun += 1
    values = [{row.settings[axis] for row in store.trials() if row.state.has_ended} for axis in AXES]
    assert all(len(each) == 2 for each in values)
    assert 3 <= begun < 8
    message = f"no trial succeeded, {begun} failed: {WHY}; {8 - begun} were not begun"
    assert driver.ended() == (State.FAILED, "DataNotFound", message)


@pytest.mark.parametrize(
    "others",
    [
        {"reason": "TrialDied"},
        {"reason": "DataNotFound", "fraction": 0.1},
        {"reason": "Succeeded", "state": "SUCCEEDED"},
        {"reason": "DataNotFound", "message": "another"},
    ],
    ids=["died", "trained", "succeeded", "another"],
)
def test_anything_else_among_the_ends_lets_the_sweep_go_on(store: TrialStore, others: dict[str, Any]) -> None:
    driver = Driver(store)
    assert driver.end(**others)
    assert all(driver.end("DataNotFound") for _ in range(7))
    state, reason, _ = driver.ended()
    succeeded, alike = others.get("state") == "SUCCEEDED", others.get("fraction")
    assert state is (State.SUCCEEDED if succeeded else State.FAILED)
    assert reason == ("Succeeded" if succeeded else "DataNotFound" if alike else "NoTrialSucceeded")


def test_two_failures_are_not_enough_and_a_small_sweep_fails_in_its_own_time(tmp_path: Path) -> None:
    store = filled(tmp_path, spec({"seed": [0, 1]}))
    driver = Driver(store)
    assert driver.end("DataNotFound")
    assert driver.end("DataNotFound")
    assert common_failure(store.trials()) is None
    assert driver.ended() == (State.FAILED, "DataNotFound", f"no trial succeeded, 2 failed: {WHY}")


def test_trials_that_were_stopped_on_purpose_are_no_failure(store: TrialStore) -> None:
    driver = Driver(store)
    row = store.trials()[0]
    store.ask(row.id, Ending(state=TrialState.STOPPED, reason="Asha", message="not among the best"))
    while driver.end("TrialDied"):
        pass
    assert driver.ended()[0] is State.SUCCEEDED
