"""The tuning report: which settings are best, and which axes matter. A pure function of evidence."""

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

from pydantic import JsonValue

from service.scaling.cells import ENDED, Group, Outcome, final_error, outcome
from service.scaling.evidence import Evidence, Question, ReportModel, Trial
from service.scaling.loss_curves import last_epoch
from service.scaling.statistics import Seeds, difference
from service.scaling.stopped import Baseline
from service.tuning.importance import LEAST, Importance, importances

SEED = "seed"
TOLD = 0.01
"""The least share that the answer names."""


class Combination(ReportModel):
    """One choice of the settings: what its seeds came to."""

    settings: dict[str, JsonValue]
    """Axis -> value, without the seed."""
    trials: list[str]
    """Their ids."""
    errors: list[float]
    """One a seed that finished or was stopped, the least first: errors, or costs of another metric."""
    weights: list[float]
    """How much each of them counts: 1 if it finished; if it was stopped, the share of the epochs that it trained."""
    mean: float | None
    """Of these; null where a seed diverged."""
    std: float | None
    finished: int
    """Seeds that were trained to their end."""
    diverged: int
    """Seeds whose loss was not finite, or stayed at chance or above its start."""
    stopped: int
    missing: int
    """Seeds that ended without a result for another reason."""
    unfinished: int
    """Seeds that still wait or train."""

    @property
    def seeds(self) -> Seeds:
        """Its errors as they count."""
        return Seeds(tuple(self.errors), tuple(self.weights))

    @property
    def words(self) -> str:
        """Its settings as they are read."""
        return ", ".join(f"{axis} {told(value)}" for axis, value in self.settings.items()) or "the spec as it is"


class Lost(ReportModel):
    """A trial that ended and was not trained to its end."""

    id: str
    settings: dict[str, JsonValue]
    outcome: Outcome
    state: str
    reason: str


class TuningReport(ReportModel):
    """What a sweep that varies no batch says about its axes."""

    kind: Literal["tuning"] = "tuning"
    """A sweep over batches has a scaling report."""
    name: str
    question: Question
    trials: dict[Outcome, int]
    """How many came to what."""
    answer: list[str]
    """In sentences, the best settings first."""
    best: Combination | None
    """Null until one has been trained to its end."""
    importances: list[Importance]
    """The greatest first; empty where too few trials have a result."""
    combinations: list[Combination]
    """All, the best first."""
    without_result: list[Lost]
    """Trials that broke, were stopped, or failed."""


def tuning_report(evidence: Evidence) -> TuningReport:
    """The report of any evidence, however thin. The order of the trials does not matter."""
    trials = sorted(evidence.trials, key=lambda trial: trial.id)
    counts: dict[Outcome, int] = dict.fromkeys(("finished", "diverged", "stopped", "missing", "unfinished"), 0)
    for trial in trials:
        counts[outcome(trial)] += 1
    found = _combinations(trials)
    best = next((one for one in found if one.finished and not one.diverged), None)
    matters = importances(_results(trials))
    return TuningReport(
        name=evidence.name,
        question=evidence.question,
        trials=counts,
        answer=_answer(evidence.question, best, found, matters),
        best=best,
        importances=matters,
        combinations=found,
        without_result=[_lost(trial) for trial in trials if outcome(trial) in ("diverged", "stopped", "missing")],
    )


def _combinations(trials: Sequence[Trial]) -> list[Combination]:
    """Those with a mean of finished seeds first, then those that were stopped, then the others."""
    groups: dict[str, Group] = {}
    settings: dict[str, dict[str, JsonValue]] = {}
    for trial in trials:
        own = {axis: value for axis, value in trial.settings.items() if axis != SEED}
        key = json.dumps(own, sort_keys=True)
        settings.setdefault(key, own)
        groups.setdefault(key, Group(trial.lr, defaultdict(list))).by_seed[trial.seed].append(trial)
    ended = [trial for trial in trials if outcome(trial) in ("finished", "stopped")]
    alone = Baseline(epochs=max((last_epoch(trial.points) for trial in ended), default=0.0))
    found = [_combination(settings[key], group, alone) for key, group in groups.items()]
    return sorted(found, key=_rank)


def _combination(settings: dict[str, JsonValue], group: Group, alone: Baseline) -> Combination:
    seeds, counts = group.seeds(alone), group.outcomes()
    has_mean = bool(seeds.errors) and not counts["diverged"]
    return Combination(
        settings=settings,
        trials=[trial.id for trial in group.trials],
        errors=list(seeds.errors),
        weights=list(seeds.weights),
        mean=seeds.mean if has_mean else None,
        std=seeds.std if has_mean else None,
        **counts,
    )


def _rank(one: Combination) -> tuple[bool, bool, float, str]:
    return one.mean is None, not one.finished, one.mean or 0.0, json.dumps(one.settings, sort_keys=True)


def _results(trials: Sequence[Trial]) -> list[tuple[dict[str, JsonValue], float]]:
    """Settings and cost of what has ended: of a trial that was stopped the last it had, of one that broke the worst of
    all."""
    ended = [(trial, outcome(trial)) for trial in trials if trial.state in ENDED]
    costs = {t.id: error for t, came in ended if came != "diverged" and (error := final_error(t)) is not None}
    worst = max(costs.values(), default=None)
    if worst is not None:
        costs |= {trial.id: worst for trial, came in ended if came == "diverged"}
    return [(trial.settings, costs[trial.id]) for trial, _ in ended if trial.id in costs]


def _lost(trial: Trial) -> Lost:
    return Lost(id=trial.id, settings=trial.settings, outcome=outcome(trial), state=trial.state, reason=trial.reason)


def _answer(
    question: Question, best: Combination | None, found: Sequence[Combination], matters: Sequence[Importance]
) -> list[str]:
    if best is None:
        return ["No trial has been trained to its end yet." if found else "There are no trials."]
    metric, sentences = question.metric, list[str]()
    has = "an error of" if metric.is_error else metric.name
    spread = "" if best.std is None else f" ± {metric.spread(best.std)}"
    count = f"{best.finished} seed{'s' if best.finished > 1 else ''}"
    told_of = f"{metric.number(best.mean or 0.0)}{spread}{metric.unit}"
    sentences.append(f"The best settings are {best.words}, with {has} {told_of} ({count}).")
    if (others := _others(best, found)) is not None:
        sentences.append(others)
    sentences.append(_matters(matters))
    return [*sentences, *_at_the_ends(best, found)]


def _others(best: Combination, found: Sequence[Combination]) -> str | None:
    """What is shown of the others."""
    others = [one for one in found if one is not best and one.mean is not None and one.finished]
    if not others:
        return None
    bounds = [difference(one.seeds, best.seeds) for one in others]
    if all(one is None for one in bounds):
        return "One seed each does not tell whether that is chance: add the axis `seed` with two values or more."
    worse = sum(one is not None and one[0] > 0 for one in bounds)
    if worse == len(others):
        return f"All {worse} others are shown to be worse." if worse > 1 else "The other is shown to be worse."
    if len(others) == 1:
        return "That the other is worse is not shown with 95 % confidence: more seeds would tell."
    return f"Of {len(others)} others, {worse} {'is' if worse == 1 else 'are'} shown to be worse with 95 % confidence."


def _matters(matters: Sequence[Importance]) -> str:
    if not matters:
        return f"Which axis matters is not told: that needs {LEAST} trials or more, with different results."
    most = max(one.trials for one in matters)
    told_of = [
        f"{one.axis} ({one.share:.0%}{'' if one.trials == most else f' among the {one.trials} trials that have it'})"
        for one in matters
        if one.share >= TOLD
    ]
    rest = f", then {', '.join(told_of[1:])}" if len(told_of) > 1 else ""
    others = "; the other axes have less than 1% each" if len(told_of) < len(matters) else ""
    return f"Most of the differences go with {told_of[0]}{rest}{others}."


def _at_the_ends(best: Combination, found: Sequence[Combination]) -> list[str]:
    """Axes of numbers along which the best lies at an end of what was tried."""
    sentences = []
    for axis, value in best.settings.items():
        tried = {one.settings.get(axis) for one in found if isinstance(one.settings.get(axis), int | float)}
        numbers = sorted(float(one) for one in tried if isinstance(one, int | float) and not isinstance(one, bool))
        if len(numbers) > 2 and isinstance(value, int | float) and value in (numbers[0], numbers[-1]):
            way = "smaller" if value == numbers[0] else "larger"
            sentences.append(f"No {axis} {way} than {told(value)} was tried, which is the best: try beyond.")
    return sentences


def told(value: JsonValue) -> str:
    """A setting as it is read: five digits of a number."""
    if isinstance(value, float):
        return f"{value:.5g}"
    return value if isinstance(value, str) else json.dumps(value)
