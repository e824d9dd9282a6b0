"""A sweep's trials by what they have in common: variant, method and batch; each cell holds its seeds."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from service.scaling.evidence import AT_START, LEARNED_NOTHING, Evidence, Question, ReportModel, Rule, Trial
from service.scaling.loss_curves import last_epoch
from service.scaling.statistics import Seeds, Verdict, difference, judged, mean
from service.scaling.stopped import Baseline

Outcome = Literal["finished", "diverged", "stopped", "missing", "unfinished"]
ENDED = ("SUCCEEDED", "FAILED", "STOPPED", "CANCELLED")
MEDIAN_EPOCHS = 5  # paper 4, section 5.1

Variant = tuple[tuple[str, str], ...]


class Method(NamedTuple):
    """How the rate follows the batch."""

    rule: Rule
    warmup: str
    multiple: float

    def __str__(self) -> str:
        kind, _, epochs = self.warmup.partition(" ")
        length = f" of {epochs} epochs" if epochs else ""
        warmup = "" if kind == "none" else f" with {kind} warm-up{length}"
        return self.rule + warmup + ("" if self.multiple == 1 else f", {self.multiple:g} times the base rate")


BASE = Method("none", "none", 1.0)
"""At the base batch every rule gives the base rate, and there is nothing to warm up."""


class Cell(ReportModel):
    """One method at one batch: what its seeds came to."""

    batch: int
    rule: Rule
    warmup: str
    multiple: float
    variant: dict[str, str]
    """Swept settings of other kinds."""
    lr: float
    """In force after scaling and warm-up."""
    errors: list[float]
    """One a seed that finished or was stopped, least first. A seed that finished more than once counts once, by its
    mean; one that was stopped is as far from the baseline's mean as it was from the baseline when it was stopped."""
    weights: list[float]
    """How much each of them counts: 1 if it finished; if it was stopped, the share of the epochs that it trained."""
    finished: int
    """Seeds that were trained to their end."""
    mean: float | None
    """Of these; null where a seed diverged, since a model that has learned nothing has no place in a mean."""
    std: float | None
    diverged: int
    """Seeds whose loss was not finite, or stayed at chance or above its start: the cell is broken."""
    stopped: int
    """Seeds stopped early, mostly because their curve had left the baseline's."""
    missing: int
    """Seeds that ended without a result for another reason."""
    unfinished: int
    """Seeds that still wait or train."""
    excess: float | None
    """The mean above the baseline's."""
    low: float | None
    """Of the excess, with 95 % confidence: it is not less."""
    high: float | None
    """Likewise: it is not more."""
    verdict: Verdict
    """Whether the excess is shown to be within the tolerance, or beyond it; `untried` without any result."""

    @property
    def method(self) -> Method:
        """How its rate followed the batch."""
        return Method(self.rule, self.warmup, self.multiple)

    @property
    def seeds(self) -> Seeds:
        """Its errors as they count."""
        return Seeds(tuple(self.errors), tuple(self.weights))


@dataclass
class Group:
    """The trials of one cell, by seed."""

    lr: float
    by_seed: dict[int, list[Trial]] = field(default_factory=lambda: defaultdict(list))

    def outcomes(self) -> dict[Outcome, int]:
        """How many seeds came to what."""
        counts: dict[Outcome, int] = dict.fromkeys(("finished", "diverged", "stopped", "missing", "unfinished"), 0)
        for trials in self.by_seed.values():
            counts[_worst(outcome(trial) for trial in trials)] += 1
        return counts

    def finished(self) -> Seeds:
        """One error a seed that finished and of which no run diverged."""
        seeds = [[final_error(trial) or 0.0 for trial in trials] for trials in self._that("finished")]
        return Seeds.of(sorted(mean(errors) for errors in seeds))

    def seeds(self, baseline: Baseline) -> Seeds:
        """These, and the seeds that were stopped, as far as they count; the least error first."""
        pairs = [(error, 1.0) for error in self.finished().errors]
        for trials in self._that("stopped"):  # of one that was stopped twice, what came farther
            found = filter(None, (baseline.weighed(trial.points, final_error(trial)) for trial in trials))
            pairs += sorted(found, key=lambda pair: (-pair[1], pair[0]))[:1]
        return Seeds(*map(tuple, zip(*sorted(pairs), strict=True))) if pairs else Seeds()

    def _that(self, came_to: Outcome) -> Iterator[list[Trial]]:
        """Of each seed that came to this, the trials that did."""
        for trials in self.by_seed.values():
            if _worst(outcome(trial) for trial in trials) == came_to:
                yield [trial for trial in trials if outcome(trial) == came_to]

    @property
    def trials(self) -> list[Trial]:
        """All of them."""
        return [trial for trials in self.by_seed.values() for trial in trials]


Groups = dict[tuple[Method, int], Group]


def outcome(trial: Trial) -> Outcome:
    """What a trial counts as."""
    if trial.state not in ENDED:
        return "unfinished"
    last = next((point.train_loss for point in reversed(trial.points) if point.train_loss is not None), None)
    if trial.reason.startswith(LEARNED_NOTHING) or (last is not None and not math.isfinite(last)):
        return "diverged"
    start = math.inf if trial.start_loss is None or trial.state != "STOPPED" else trial.start_loss
    if last is not None and last >= AT_START * start:
        return "diverged"  # nobody else has told it: the trainer judges by whole stretches of a run
    if trial.state not in ("SUCCEEDED", "STOPPED") or final_error(trial) is None:
        return "missing"
    return "finished" if trial.state == "SUCCEEDED" else "stopped"


def _worst(outcomes: Iterable[Outcome]) -> Outcome:
    """What a seed counts as that ran more than once: it diverged if it ever did, and finished if it ever did."""
    order: tuple[Outcome, ...] = ("diverged", "finished", "stopped", "unfinished", "missing")
    return min(outcomes, key=order.index)


def final_error(trial: Trial) -> float | None:
    """The reported one, or the median over the evaluations of the last 5 epochs (paper 4, section 5.1)."""
    if trial.error is not None:
        return trial.error
    last = last_epoch(trial.points)
    errors = [p.test_error for p in trial.points if p.test_error is not None and p.epoch > last - MEDIAN_EPOCHS]
    ordered = sorted(errors)
    return (ordered[len(errors) // 2] + ordered[(len(errors) - 1) // 2]) / 2 if errors else None


def grouped(evidence: Evidence) -> dict[Variant, Groups]:
    """Trials by variant, method and batch, each in an order of its own that the evidence's order does not change."""
    found: dict[Variant, Groups] = {}
    for trial in sorted(evidence.trials, key=_place):
        key = (method_of(trial, evidence.question), trial.batch)
        group = found.setdefault(trial.variant, {}).setdefault(key, Group(trial.lr))
        group.by_seed[trial.seed].append(trial)
    return found


def _place(trial: Trial) -> tuple[object, ...]:
    settings = (trial.variant, trial.batch, trial.rule, trial.warmup, trial.multiple, trial.lr, trial.seed, trial.id)
    return (*settings, trial.state, trial.reason, -1.0 if trial.error is None else trial.error)


def method_of(trial: Trial, question: Question) -> Method:
    """A trial's method. At the base batch all rules are one, and a rate that is not raised needs no warm-up."""
    multiple = question.multiple(trial)
    if trial.batch == question.base_batch:
        return BASE._replace(multiple=multiple)
    raised = trial.rule != "none" and trial.batch > question.base_batch
    return Method(trial.rule, trial.warmup if raised else "none", multiple)


def baseline_of(groups: Groups, question: Question) -> Baseline:
    """What the other cells of a variant are compared with: its base batch at the base rate."""
    group = groups.get((BASE, question.base_batch))
    ended = [t for g in groups.values() for t in g.trials if outcome(t) in ("finished", "stopped")]
    epochs = max((last_epoch(trial.points) for trial in ended), default=0.0)
    if group is None:
        return Baseline(epochs=epochs)
    curves = tuple(trial.points for trial in group.trials if outcome(trial) == "finished")
    alone = Baseline(group.finished(), curves, epochs)
    return replace(alone, seeds=group.seeds(alone))


def cell(group: Group, method: Method, batch: int, variant: Variant, baseline: Baseline, tolerance: float) -> Cell:
    """What one group of trials came to, against the baseline."""
    seeds, counts = group.seeds(baseline), group.outcomes()
    has_mean = bool(seeds.errors) and not counts["diverged"]
    bounds = difference(seeds, baseline.seeds) if has_mean else None
    return Cell(
        batch=batch,
        rule=method.rule,
        warmup=method.warmup,
        multiple=method.multiple,
        variant=dict(variant),
        lr=group.lr,
        errors=list(seeds.errors),
        weights=list(seeds.weights),
        finished=counts["finished"],
        mean=seeds.mean if has_mean else None,
        std=seeds.std if has_mean else None,
        diverged=counts["diverged"],
        stopped=counts["stopped"],
        missing=counts["missing"],
        unfinished=counts["unfinished"],
        excess=seeds.mean - baseline.seeds.mean if has_mean and baseline.seeds.errors else None,
        low=bounds[0] if bounds else None,
        high=bounds[1] if bounds else None,
        verdict=judged(seeds, counts["diverged"], baseline.seeds, tolerance),
    )
