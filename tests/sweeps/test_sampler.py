"""Optuna's part, with a stand-in for its ask-and-tell: what is proposed is run once, and what is known is told."""

import itertools
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from service import Ledger, parse_sweep
from service.sweeps import control
from service.sweeps.ledger import Ending, TrialState
from service.sweeps.sampler import Sampler
from service.sweeps.spec import OptunaSearch


class Study:
    """Proposes one combination after another, each twice."""

    asked = itertools.count()

    def __init__(self) -> None:
        self.known: list[Any] = []
        self.told: list[float] = []

    def ask(self, space: dict[str, int]) -> Any:
        number = next(self.asked) // 2
        params = {}
        for axis, size in space.items():
            number, params[axis] = divmod(number, size)
        return SimpleNamespace(params=params)

    def tell(self, trial: Any, error: float) -> None:
        self.told.append(error)

    def add_trial(self, trial: Any) -> None:
        self.known.append(trial)


@pytest.fixture
def studies(monkeypatch: pytest.MonkeyPatch) -> list[Study]:
    """Every study that is made."""
    made: list[Study] = []
    optuna: Any = ModuleType("optuna")
    distributions: Any = ModuleType("optuna.distributions")
    distributions.CategoricalDistribution = len
    optuna.logging = SimpleNamespace(set_verbosity=lambda level: None, ERROR=40)
    optuna.samplers = SimpleNamespace(TPESampler=lambda **_: None)
    optuna.trial = SimpleNamespace(create_trial=lambda **fields: fields)
    optuna.create_study = lambda **_: made.append(Study()) or made[-1]
    monkeypatch.setitem(sys.modules, "optuna", optuna)
    monkeypatch.setitem(sys.modules, "optuna.distributions", distributions)
    monkeypatch.setattr("service.sweeps.spec.find_spec", lambda name: True)
    monkeypatch.setattr(Study, "asked", itertools.count())
    return made


def test_each_proposal_is_a_new_configuration_up_to_the_limit(tmp_path: Path, studies: list[Study]) -> None:
    axes = {"seed": [0, 1], "optimizer.lr": [0.1, 0.2]}
    spec = parse_sweep({"job": {"workers": 1}, "axes": axes, "search": "optuna", "limits": {"trials": 3}})
    ledger = control.begin(tmp_path, "sweep-1", spec)
    assert [row.settings for row in ledger.trials()] == [{"optimizer.lr": 0.1, "seed": 0}]
    done = Ending(state=TrialState.SUCCEEDED, reason="Succeeded", message="")
    ledger.finish(ledger.trials()[0].id, done, 0.25)
    assert isinstance(spec.search, OptunaSearch)
    sampler = Sampler(ledger, spec, spec.search)
    assert sampler.propose()
    (known,) = studies[0].known
    assert (known["params"], known["value"]) == ({"seed": 0, "optimizer.lr": 0}, 0.25)
    assert studies[0].told == [0.25, 0.25]  # the first was run already, and proposed twice
    assert sampler.propose()
    assert not sampler.propose()
    assert len({tuple(row.settings.items()) for row in Ledger(tmp_path).trials()}) == 3


def test_a_small_space_is_exhausted(tmp_path: Path, studies: list[Study], monkeypatch: pytest.MonkeyPatch) -> None:
    spec = parse_sweep({"job": {"workers": 1}, "axes": {"seed": [0]}, "search": "optuna"})
    ledger = control.begin(tmp_path, "sweep-1", spec)
    monkeypatch.setattr(Study, "ask", lambda self, space: SimpleNamespace(params={"seed": 0}))
    assert isinstance(spec.search, OptunaSearch)
    sampler = Sampler(ledger, spec, spec.search)
    assert not sampler.propose()
    assert sampler.exhausted
