"""A sweep's trials by what they have in common: variant, method and batch; each cell holds its seeds."""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from service.scaling.evidence import DIVERGED, LEARNED_NOTHING, Evidence, Question, ReportModel, Rule, Trial
from service.scaling.loss_curves import last_epoch
from service.scaling.statistics import Verdict, difference, judged, mean, std

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
    """One a seed that finished, least first. A seed that ran more than once counts once, by its mean."""
    mean: float | None
    std: float | None
    diverged: int
    """Seeds whose loss was not finite, or stayed at chance or above its start."""
    stopped: int
    """Seeds stopped because their curve had left the baseline's."""
    missing: int
    """Seeds that ended without a result for another reason."""
    unfinished: int
    """Seeds that still wait or train."""
    excess: float | None
    """Mean error above the baseline's."""
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
    def broken(self) -> int:
        """Seeds that diverged, by themselves or by their curve."""
        return self.diverged + self.stopped


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

    def errors(self) -> list[float]:
        """One a seed that finished and of which no run diverged."""
        found = []
        for trials in self.by_seed.values():
            errors = [error for trial in trials if (error := final_error(trial)) is not None]
            if _worst(outcome(trial) for trial in trials) == "finished":
                found.append(mean(errors))
        return sorted(found)

    @property
    def trials(self) -> list[Trial]:
        """All of them."""
        return [trial for trials in self.by_seed.values() for trial in trials]


Groups = dict[tuple[Method, int], Group]


def outcome(trial: Trial) -> Outcome:
    """What a trial counts as."""
    if trial.state not in ENDED:
        return "unfinished"
    last = next((point.train_loss for point in reversed(trial.points) if point.train_loss is not None), 0.0)
    if trial.reason.startswith(LEARNED_NOTHING) or not math.isfinite(last):
        return "diverged"
    if trial.state == "STOPPED" and trial.reason.startswith(DIVERGED):
        return "stopped"
    return "finished" if trial.state == "SUCCEEDED" and final_error(trial) is not None else "missing"


def _worst(outcomes: Iterable[Outcome]) -> Outcome:
    """What a seed counts as that ran more than once: it diverged if it ever did, and finished if it ever did."""
    order: tuple[Outcome, ...] = ("diverged", "stopped", "finished", "unfinished", "missing")
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


def cell(group: Group, method: Method, batch: int, variant: Variant, baseline: list[float], tolerance: float) -> Cell:
    """What one group of trials came to, against the baseline's errors."""
    errors, counts = group.errors(), group.outcomes()
    bounds = difference(errors, baseline)
    return Cell(
        batch=batch,
        rule=method.rule,
        warmup=method.warmup,
        multiple=method.multiple,
        variant=dict(variant),
        lr=group.lr,
        errors=errors,
        mean=mean(errors) if errors else None,
        std=std(errors),
        diverged=counts["diverged"],
        stopped=counts["stopped"],
        missing=counts["missing"],
        unfinished=counts["unfinished"],
        excess=mean(errors) - mean(baseline) if errors and baseline else None,
        low=bounds[0] if bounds else None,
        high=bounds[1] if bounds else None,
        verdict=judged(errors, counts["diverged"] + counts["stopped"], baseline, tolerance),
    )
