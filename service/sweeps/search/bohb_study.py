"""BOHB (Falkner, Klein and Hutter 2018): kernel density estimates of the good and the bad configurations at the largest
budget of which enough is known, by the authors' package; the budgets are those of halving."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import JsonValue

from service.sweeps.axis import Axis, Range, condition, listed
from service.sweeps.spec import BohbSearch, Halving, SweepSpec
from service.sweeps.trial_store import TrialRow

Costs = Callable[[TrialRow], dict[int, float]]
"""Of a trial, at the ends of its epochs."""


class BohbStudy:
    """A model made of the trials so far, and of the error that each had at each rung."""

    def __init__(self, spec: SweepSpec, search: BohbSearch, rows: list[TrialRow], costs: Costs) -> None:
        import numpy as np
        from ConfigSpace import ConfigurationSpace
        from hpbandster.optimizers.config_generators.bohb import BOHB

        seed = search.seed + len(rows)
        np.random.seed(seed % 2**32)  # the package draws from NumPy's own
        self.spec = spec
        space = ConfigurationSpace(seed=seed % 2**32)
        made = {name: _hyperparameter(name, spec.axes[name]) for name in spec.in_order}
        space.add(*made.values())
        for name in spec.in_order:
            if (needed := _condition(made, name, spec)) is not None:
                space.add(needed)
        with _quiet():
            self.model = BOHB(space)
            for row in rows:
                self._learn(search, row, costs(row))

    def ask(self) -> dict[str, JsonValue]:
        """The settings that it would try next."""
        with _quiet():
            found, _ = self.model.get_config(None)
        return {name: _value(self.spec.axes[name], found[name]) for name in self.spec.in_order if name in found}

    def tell(self, cost: float) -> None:
        """Nothing: it draws anew."""

    def _learn(self, search: BohbSearch, row: TrialRow, costs: dict[int, float]) -> None:
        config = {}
        for name, value in row.settings.items():
            axis = self.spec.axes.get(name, ())
            if not isinstance(axis, Range) and value not in listed(axis):
                return
            config[name] = value if isinstance(axis, Range) else listed(axis).index(value)
        known = {rung: costs.get(rung) for rung in rungs(search, row.job["epochs"])}
        broke = row.state.has_ended and row.error is None
        for rung, cost in known.items():
            if broke or cost is not None:
                self.model.new_result(_Result(config, rung, None if broke else cost))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of ConfigSpace and statsmodels about how the package calls them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class _Result:
    """As the package has it. cost: None of a trial that broke."""

    def __init__(self, config: dict[str, Any], rung: int, cost: float | None) -> None:
        self.kwargs = {"config": config, "budget": float(rung)}
        self.result = None if cost is None else {"loss": cost}
        self.exception = None


def rungs(halving: Halving, epochs: int) -> list[int]:
    """The epochs at which halving compares, the last included."""
    found, rung = list[int](), float(min(halving.grace_epochs, epochs))
    while rung < epochs:
        found.append(int(rung))
        rung *= halving.reduction
    return [*dict.fromkeys(found), epochs]


def _hyperparameter(name: str, axis: Axis) -> Any:
    from ConfigSpace import CategoricalHyperparameter, UniformFloatHyperparameter, UniformIntegerHyperparameter

    if not isinstance(axis, Range):
        return CategoricalHyperparameter(name, [*range(len(listed(axis)))])
    if axis.integer:
        return UniformIntegerHyperparameter(name, int(axis.low), int(axis.high), log=axis.log)
    return UniformFloatHyperparameter(name, axis.low, axis.high, log=axis.log)


def _condition(made: dict[str, Any], name: str, spec: SweepSpec) -> Any:
    from ConfigSpace import AndConjunction, InCondition

    found = [
        InCondition(made[name], made[other], [listed(spec.axes[other]).index(value) for value in values])
        for other, values in condition(spec.axes[name]).items()
    ]
    if not found:
        return None
    return found[0] if len(found) == 1 else AndConjunction(*found)


def _value(axis: Axis, found: Any) -> JsonValue:
    return axis.rounded(float(found)) if isinstance(axis, Range) else listed(axis)[int(found)]
