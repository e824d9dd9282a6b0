"""The scaling report: how large the batch can be, by which rule, and how sure that is. A pure function of evidence."""

from typing import Literal

from service.scaling.cells import BASE, Cell, Groups, Outcome, Variant, baseline_of, cell, grouped, outcome
from service.scaling.divergence import Divergence
from service.scaling.evidence import Evidence, Question, ReportModel, Trial
from service.scaling.gaps import Gap, View, gaps, mean_seconds
from service.scaling.limits import Reach, reaches
from service.scaling.loss_curves import last_epoch
from service.scaling.narrative import Lead, answer, lead
from service.scaling.proxy import Proxy, Saved, replayed, saved_by_stopping
from service.scaling.rates import BatchRates, exponent, rates_by_batch
from service.scaling.statistics import CONFIDENCE, Seeds
from service.scaling.targets import TimeToTarget, times_to_target


class WithoutResult(ReportModel):
    """A trial that broke or was not trained to its end."""

    id: str
    batch: int
    method: str
    seed: int
    outcome: Outcome
    state: str
    reason: str


class VariantReport(ReportModel):
    """The answer for one choice of the settings that are neither batch, rule, warm-up, rate nor seed."""

    variant: dict[str, str]
    """Those settings; empty where the sweep had no such axis."""
    answer: list[str]
    """In sentences, the baseline first and what to use last."""
    baseline: Cell | None
    rules: list[Reach]
    """One a method, the best first."""
    lead: Lead | None
    """Of the best rule over the next."""
    cells: list[Cell]
    """Every method at every batch: paper 4's figure 1."""
    rates: list[BatchRates]
    """Paper 4's table 2a."""
    rate_exponent: float | None
    """The best rates follow the batch to this power, up to where a rule is estimated to hold: 0 none, 0.5 sqrt, 1
    linear."""
    targets: list[TimeToTarget]
    """Paper 3's table II, the baseline first."""
    proxy: Proxy | None
    """Whether the curves predicted the results."""
    gaps: list[Gap]
    """What the evidence does not tell, and the trials that would."""


class ScalingReport(ReportModel):
    """What a sweep says about the batch and the learning rate."""

    kind: Literal["scaling"] = "scaling"
    """A sweep that varies no batch has a tuning report."""
    name: str
    question: Question
    confidence: float = CONFIDENCE
    """Of each side of an interval, and of each answer's ends."""
    trials: dict[Outcome, int]
    """How many came to what."""
    variants: list[VariantReport]
    without_result: list[WithoutResult]
    """Trials that broke, or were not trained to their end."""
    saved: Saved
    """By stopping trials whose curve had left the baseline's."""


def scaling_report(evidence: Evidence, limits: Divergence | None = None) -> ScalingReport:
    """The report of any evidence, however thin. The order of the trials does not matter.

    limits: what the curves are judged by, in the replay of the finished trials.
    """
    parts = grouped(evidence)
    trials = [trial for groups in parts.values() for group in groups.values() for trial in group.trials]
    counts: dict[Outcome, int] = dict.fromkeys(("finished", "diverged", "stopped", "missing", "unfinished"), 0)
    for trial in trials:
        counts[outcome(trial)] += 1
    variants = (
        _variant(variant, parts[variant], evidence.question, limits or Divergence()) for variant in sorted(parts)
    )
    return ScalingReport(
        name=evidence.name,
        question=evidence.question,
        trials=counts,
        variants=list(variants),
        without_result=_without_result(parts),
        saved=saved_by_stopping([parts[variant] for variant in sorted(parts)]),
    )


def _variant(variant: Variant, groups: Groups, question: Question, limits: Divergence) -> VariantReport:
    base = baseline_of(groups, question)
    cells = [cell(g, method, batch, variant, base, question.tolerance) for (method, batch), g in groups.items()]
    cells.sort(key=lambda c: (c.batch, c.method))
    baseline = next((c for c in cells if c.batch == question.base_batch and c.method == BASE), None)
    found, rates = reaches(cells, question), rates_by_batch(cells, question)
    first = lead(found, cells)
    end = max((max(reach.shown, reach.estimated) for reach in found), default=0)
    power = exponent([row for row in rates if row.batch <= end])
    view = View(variant, groups, cells, base.seeds, question, mean_seconds(groups))
    return VariantReport(
        variant=dict(variant),
        answer=answer(question, baseline, found, first, power),
        baseline=baseline,
        rules=found,
        lead=first,
        cells=cells,
        rates=rates,
        rate_exponent=power,
        targets=_targets(groups, question, base.seeds, variant),
        proxy=replayed(groups, base.seeds, question, _epochs(groups), limits),
        gaps=gaps(view, found, rates),
    )


def _targets(groups: Groups, question: Question, baseline: Seeds, variant: Variant) -> list[TimeToTarget]:
    target = question.target_error
    if target is None and baseline.errors:
        target = baseline.mean + question.tolerance
        target = min(1.0, target) if question.metric.is_error else target
    return [] if target is None else times_to_target(groups, question, target, variant)


def _epochs(groups: Groups) -> float:
    """Of a whole run: as far as the longest finished trial came."""
    trials = [trial for group in groups.values() for trial in group.trials if outcome(trial) == "finished"]
    return max((last_epoch(trial.points) for trial in trials), default=0.0)


def _without_result(parts: dict[Variant, Groups]) -> list[WithoutResult]:
    found = []
    for variant in sorted(parts):
        for (method, batch), group in parts[variant].items():
            lost = [trial for trial in group.trials if outcome(trial) not in ("finished", "unfinished")]
            found += [_told(trial, str(method), batch) for trial in lost]
    return found


def _told(trial: Trial, method: str, batch: int) -> WithoutResult:
    fields = {"id": trial.id, "seed": trial.seed, "state": trial.state, "reason": trial.reason}
    return WithoutResult.model_validate({**fields, "method": method, "batch": batch, "outcome": outcome(trial)})
