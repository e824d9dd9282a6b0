"""Optuna's part, with the real one: what is proposed is run once, and what is known is told."""

from pathlib import Path
from typing import Any

import pytest

from service import TrialStore, parse_sweep
from service.sweeps import control
from service.sweeps.search.sampler import Sampler
from service.sweeps.spec import OptunaSearch, SweepSpec
from service.sweeps.trial_store import Ending, TrialRow, TrialState

RATES = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]


def of(axes: dict[str, list[Any]], **more: Any) -> SweepSpec:
    return parse_sweep({"job": {"workers": 1}, "axes": axes, "search": "optuna", **more})


def begun(folder: Path, spec: SweepSpec) -> tuple[TrialStore, Sampler]:
    store = control.begin(folder, "sweep-1", spec)
    assert isinstance(spec.search, OptunaSearch)
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
    (known,) = sampler._study(store.trials()).trials  # the second has not ended
    assert known.value == 0.25
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
