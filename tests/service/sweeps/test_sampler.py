"""Searches that go by results, with the real Optuna and BOHB: what is proposed is run once, what is known is told."""

import math
from pathlib import Path
from typing import Any

import pytest

from service import TrialStore, parse_sweep
from service.sweeps import control
from service.sweeps.search.bohb_study import rungs
from service.sweeps.search.optuna_study import OptunaStudy
from service.sweeps.search.sampler import Sampler
from service.sweeps.spec import Halving, Sampled, SweepSpec
from service.sweeps.trial_store import Ending, TrialRow, TrialState
from service.sweeps.views import summary
from trainers import EventLog

RATES = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]


def of(axes: dict[str, Any], **more: Any) -> SweepSpec:
    return parse_sweep({"job": {"workers": 1}, "axes": axes, "search": "optuna", **more})


def begun(folder: Path, spec: SweepSpec) -> tuple[TrialStore, Sampler]:
    store = control.begin(folder, "sweep-1", spec)
    assert isinstance(spec.search, Sampled)
    return store, Sampler(store, spec, spec.search)


def finish(store: TrialStore, row: TrialRow, error: float) -> None:
    store.finish(row.id, Ending(state=TrialState.SUCCEEDED, reason="Succeeded", message=""), error)


def test_each_proposal_is_a_new_configuration_up_to_the_limit(tmp_path: Path) -> None:
    store, sampler = begun(tmp_path, of({"seed": [0, 1], "optimizer.lr": [0.1, 0.2]}, limits={"trials": 3}))
    assert len(store.trials()) == 1
    finish(store, store.trials()[0], 0.25)
    assert sampler.propose()
    assert sampler.propose()
    assert not sampler.propose()
    assert not sampler.exhausted
    assert len({tuple(row.settings.items()) for row in TrialStore(tmp_path).trials()}) == 3


def test_a_study_knows_what_has_ended(tmp_path: Path) -> None:
    store, sampler = begun(tmp_path, of({"optimizer.lr": RATES}, limits={"trials": 8}))
    finish(store, store.trials()[0], 0.25)
    assert sampler.propose()
    study = sampler.study(store.trials())
    assert isinstance(study, OptunaStudy)
    known, other = study.study.trials
    assert (known.value, other.state.name) == (0.25, "RUNNING")
    assert [RATES[index] for index in known.params.values()] == [store.trials()[0].settings["optimizer.lr"]]


def test_the_search_goes_where_the_error_is_small(tmp_path: Path) -> None:
    axes = {"optimizer.lr": RATES, "seed": list(range(40))}
    store, sampler = begun(tmp_path, of(axes, limits={"trials": 60}))
    for _ in range(50):
        row = store.trials()[-1]
        finish(store, row, 0.1 if row.settings["optimizer.lr"] == 0.3 else 0.9)
        assert sampler.propose()
    rates = [row.settings["optimizer.lr"] for row in store.trials()]
    assert rates[-20:].count(0.3) > 2 * 20 / len(RATES)  # by chance a part of one in eight


@pytest.mark.parametrize("size", [1, 3])
def test_a_small_space_is_exhausted(tmp_path: Path, size: int) -> None:
    store, sampler = begun(tmp_path, of({"seed": list(range(size))}))
    while sampler.propose():
        finish(store, store.trials()[-1], 0.5)
    assert sampler.exhausted
    assert len(store.trials()) == size


RANGES = {
    "optimizer": ["sgd", "momentum"],
    "optimizer.lr": {"low": 1e-4, "high": 1, "log": True},
    "optimizer.momentum": {"low": 0.5, "high": 0.9, "step": 0.1, "when": {"optimizer": "momentum"}},
    "batch.per_worker": {"low": 8, "high": 64, "integer": True},
}


def told(store: TrialStore, row: TrialRow, error: float) -> None:
    """The log of a trial that was evaluated after each of three epochs."""
    store.run_dir(row.id).mkdir(parents=True)
    log = EventLog(store.run_dir(row.id))
    for epoch in (1, 2, 3):
        figures = {"test_accuracy": 1 - error, "test_loss": 1.0}
        log.append("evaluation", {"epoch": epoch, "examples": 8 * epoch, **figures})
    log.close()


@pytest.mark.parametrize(
    "search", [{"name": "optuna"}, {"name": "optuna", "sampler": "gp"}, {"name": "bohb"}], ids=["tpe", "gp", "bohb"]
)
def test_ranges_are_searched_where_the_error_is_small(tmp_path: Path, search: dict[str, Any]) -> None:
    if search["name"] == "bohb":
        pytest.importorskip("hpbandster", reason="the extra `bohb` is not installed")
    spec = of(RANGES, job={"workers": 1, "epochs": 3}, search=search, limits={"trials": 40})
    store, sampler = begun(tmp_path, spec)
    for _ in range(26):
        row = store.trials()[-1]
        error = 0.1 + 0.2 * abs(math.log10(row.settings["optimizer.lr"]) + 2)  # least at 0.01
        told(store, row, error)
        finish(store, row, error)
        assert sampler.propose()
    rows = store.trials()
    for row in rows:
        assert ("optimizer.momentum" in row.settings) == (row.settings["optimizer"] == "momentum")
        assert row.settings.get("optimizer.momentum", 0.5) in (0.5, 0.6, 0.7, 0.8, 0.9)
        assert isinstance(row.settings["batch.per_worker"], int)
        assert row.job_spec.batch.per_worker == row.settings["batch.per_worker"]
    far = [abs(math.log10(row.settings["optimizer.lr"]) + 2) for row in rows]
    assert sum(far[-8:]) / 8 < 0.7  # 1 by chance
    assert Sampler(TrialStore(tmp_path), spec, sampler.search).propose()  # another driver goes on


def test_the_budgets_of_bohb_are_the_rungs_of_halving() -> None:
    assert rungs(Halving(), 20) == [1, 3, 9, 20]
    assert rungs(Halving(grace_epochs=4, reduction=2), 8) == [4, 8]
    assert rungs(Halving(grace_epochs=4), 2) == [2]


def test_the_progress_is_of_all_trials_that_there_will_be(tmp_path: Path) -> None:
    store, sampler = begun(tmp_path, of({"seed": [0, 1, 2, 3]}, limits={"trials": 3}))
    finish(store, store.trials()[0], 0.5)
    assert sampler.propose()
    assert summary(store).progress == pytest.approx(1 / 3)
    assert of(RANGES, limits={"trials": 7}).most_trials == 7
    assert of(RANGES, search="random").most_trials is None
