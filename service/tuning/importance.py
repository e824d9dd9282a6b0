"""Which axes matter: functional ANOVA (Hutter, Hoos and Leyton-Brown 2014), by Optuna."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from service.scaling.evidence import ReportModel

LEAST = 5
"""Trials with a result: of fewer, a share would say more of chance than of an axis."""
MOST = 200
"""Trials that the forest is grown on, spread over the sweep: 2 s, where 1,000 would take 27 s."""


class Importance(ReportModel):
    """How much of the spread of the results goes with one axis."""

    axis: str
    share: float
    """0 to 1: of the variance that a forest of trees explains, what the axis accounts for by itself. The axes that all
    trials have come to 1 together."""
    trials: int
    """That have the axis, and a result."""


def importances(results: Sequence[tuple[Mapping[str, JsonValue], float]]) -> list[Importance]:
    """One an axis that has several values, the greatest first, and last those that not all have; none where too few
    trials have a result.

    results: Settings and cost of each trial. An axis that not all trials have is judged among those that have it.
    """
    if len(results) < LEAST or len({cost for _, cost in results}) < 2:
        return []
    axes = dict.fromkeys(axis for settings, _ in results for axis in settings)
    several = [axis for axis in axes if len({json.dumps(s[axis]) for s, _ in results if axis in s}) > 1]
    common = [axis for axis in several if all(axis in settings for settings, _ in results)]
    found = _shares(common, results)
    for axis in several:
        having = [one for one in results if axis in one[0]]
        if axis not in common and len(having) >= LEAST:
            found += [one for one in _shares([*common, axis], having) if one.axis == axis]
    return sorted(found, key=lambda one: (-one.trials, -one.share, one.axis))


def _shares(axes: Sequence[str], results: Sequence[tuple[Mapping[str, JsonValue], float]]) -> list[Importance]:
    import optuna

    if not axes:
        return []
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    codes = {axis: _codes([settings[axis] for settings, _ in results]) for axis in axes}
    space = {axis: _distribution(codes[axis]) for axis in axes}
    study = optuna.create_study()
    step = -(-len(results) // MOST)
    for settings, cost in results[::step]:
        params = {axis: codes[axis][json.dumps(settings[axis])] for axis in axes}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=space, value=cost))
    found = optuna.importance.get_param_importances(
        study, evaluator=optuna.importance.FanovaImportanceEvaluator(seed=0), params=[*axes]
    )
    return [Importance(axis=axis, share=share, trials=len(results)) for axis, share in found.items()]


def _codes(values: Sequence[JsonValue]) -> dict[str, int]:
    """Each value's place: numbers in their order, so that a scale in decades counts as one in ones does."""
    ordered = sorted(values, key=_number) if _are_numbers(values) else sorted(values, key=json.dumps)
    return {text: place for place, text in enumerate(dict.fromkeys(json.dumps(value) for value in ordered))}


def _distribution(codes: Mapping[str, int]) -> Any:
    from optuna.distributions import CategoricalDistribution, IntDistribution

    if _are_numbers([json.loads(text) for text in codes]):
        return IntDistribution(0, len(codes) - 1)
    return CategoricalDistribution([*range(len(codes))])


def _are_numbers(values: Sequence[JsonValue]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _number(value: Any) -> float:
    return float(value)
