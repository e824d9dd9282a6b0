"""Whether a claim holds here: each expectation is held against the seeds, and the claim against its expectations.

The variants share their seeds, which draw the initial weights and the order of the examples; so the difference of two
variants is taken seed by seed, and its interval is Student's of the paired differences. Of a quantity other than the
metric it is their ratio instead.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from service.claims.claim import Claim, Expectation, More, Near, NoMore, NoWorse, variant_name
from service.claims.shards import by_pairs, fullest_shares
from service.scaling.cells import final_error, outcome
from service.scaling.counted import FULLEST, Quantity
from service.scaling.evidence import Evidence, ReportModel
from service.scaling.metric import Metric
from service.scaling.report import scaling_report
from service.scaling.statistics import CONFIDENCE, Seeds, interval_of

Answer = Literal["holds", "does not hold", "not shown"]
Verdict = Literal["holds here", "holds in part", "does not hold here", "not shown"]


class VariantResult(ReportModel):
    """What the seeds of one variant came to."""

    name: str
    costs: dict[int, float]
    """Seed -> cost, of those that were trained to their end."""
    diverged: int
    """Seeds whose loss was not finite, or that learned nothing."""
    missing: int
    """Seeds without a result: failed, cancelled, or not ended yet."""
    mean: float | None
    """None where a seed diverged: a model that has learned nothing has no place in a mean."""
    std: float | None
    quantities: dict[Quantity, dict[int, float]] = Field(default={})
    """What the claim judges beside the metric -> seed -> value, of those that were trained to their end."""


class Finding(ReportModel):
    """One expectation, and what the seeds say of it."""

    expected: str
    """In words."""
    low: float | None
    """The mean difference over the seeds that both have, or the mean ratio, is not less, with 95 % confidence; none: a
    seed diverged, or fewer than two are common."""
    high: float | None
    """It is not more, likewise."""
    answer: Answer
    of: Quantity | None = None
    """What the ratio is of; none: it is a difference of the metric."""


class Results(ReportModel):
    """What the variants of a sweep came to."""

    metric: Metric
    variants: list[VariantResult]


class ClaimReport(Results):
    """A claim with its verdict."""

    number: int
    name: str
    claim: str
    source: str
    differs: str
    quick: bool
    """A short run, whose verdict is only that the command works."""
    confidence: float = CONFIDENCE
    """Of each side of an interval."""
    verdict: Verdict
    findings: list[Finding]
    shares: dict[str, dict[int, float]] = Field(default={})
    """Model and placement -> number of servers -> what the fullest of them holds, 0 to 1."""
    breaking: tuple[str, ...] = ()
    """Of a sweep of rules over batches: how far each of them carries, in the words of the scaling report."""
    before: Results | None = None
    """Of the networks that the variants start from; none: they start from none."""


def claim_report(claim: Claim, evidence: Evidence, quick: bool = False, before: Evidence | None = None) -> ClaimReport:
    """What a sweep's trials, however few of them have ended, say of the claim.

    before: Those of the sweep that is run first, where the claim has one.
    """
    metric = evidence.question.metric
    shares = fullest_shares(claim.shards) if claim.shards else {}
    computed = by_pairs(shares)
    found = _results(claim, evidence, [name for one in claim.expect for name in one.variants if name not in computed])
    findings = [
        _ratio(one, *(computed[name] for name in one.variants))
        if isinstance(one, More | NoMore) and one.of == FULLEST
        else _finding(one, found, metric)
        for one in claim.expect
    ]
    return ClaimReport(
        **claim.model_dump(include={"number", "name", "claim", "source", "differs"}),
        quick=quick,
        metric=metric,
        verdict=_verdict([finding.answer for finding in findings]),
        variants=list(found.values()),
        findings=findings,
        shares=shares,
        breaking=_breaking(evidence) if "rule" in claim.sweep.axes else (),
        before=_before(claim, before),
    )


def _before(claim: Claim, evidence: Evidence | None) -> Results | None:
    if claim.before is None or evidence is None:
        return None
    first = claim.model_copy(update={"sweep": claim.before, "expect": ()})
    return Results(metric=evidence.question.metric, variants=list(_results(first, evidence).values()))


def _breaking(evidence: Evidence) -> tuple[str, ...]:
    return tuple(sentence for part in scaling_report(evidence).variants for sentence in part.answer)


def _results(claim: Claim, evidence: Evidence, expected: Sequence[str] = ()) -> dict[str, VariantResult]:
    costs: dict[str, dict[int, float]] = defaultdict(dict)
    counted: dict[str, dict[Quantity, dict[int, float]]] = defaultdict(lambda: {of: {} for of in claim.quantities})
    asked = claim.sweep.variants or [variant_name(trial.settings) for trial in evidence.trials]
    counts: dict[str, dict[str, int]] = {name: {"diverged": 0, "missing": 0} for name in (*asked, *expected)}
    for trial in evidence.trials:
        name, came_to, cost = variant_name(trial.settings), outcome(trial), final_error(trial)
        if name not in counts:
            continue
        if trial.state == "SUCCEEDED":
            for of, values in counted[name].items():
                if of in trial.quantities:
                    values[trial.seed] = trial.quantities[of]
        if trial.state == "SUCCEEDED" and not claim.judges_metric:
            continue  # whatever it learned, what was asked of it was counted
        if came_to == "diverged":
            counts[name]["diverged"] += 1
        elif came_to == "finished" and cost is not None:
            costs[name][trial.seed] = cost
        else:
            counts[name]["missing"] += 1
    return {
        name: _result(name, dict(sorted(costs[name].items())), counted[name], **count) for name, count in counts.items()
    }


def _result(
    name: str, costs: dict[int, float], counted: dict[Quantity, dict[int, float]], diverged: int, missing: int
) -> VariantResult:
    seeds = Seeds.of(list(costs.values()))
    has_mean = bool(costs) and not diverged
    return VariantResult(
        name=name,
        costs=costs,
        diverged=diverged,
        missing=missing,
        mean=seeds.mean if has_mean else None,
        std=seeds.std if has_mean else None,
        quantities=counted,
    )


def _finding(expected: Expectation, found: dict[str, VariantResult], metric: Metric) -> Finding:
    ours, theirs = (found[name] for name in expected.variants)
    if isinstance(expected, More | NoMore):
        return _ratio(expected, ours.quantities[expected.of], theirs.quantities[expected.of])
    common = sorted(ours.costs.keys() & theirs.costs.keys())
    differences = [ours.costs[seed] - theirs.costs[seed] for seed in common]
    interval = None if ours.diverged or theirs.diverged else interval_of(differences)
    low, high = (-math.inf, math.inf) if interval is None else interval
    if ours.diverged and not theirs.diverged:  # it is worse than anything that has learned
        low = math.inf
    if isinstance(expected, Near):
        within = expected.within
        answer = _answer(-within < low and high < within, low > within or high < -within)
        words = f"{expected.near} is within {metric.gap(within)} of {expected.to}"
    elif isinstance(expected, NoWorse):
        answer = _answer(high < expected.within, low > expected.within)
        words = f"{expected.no_worse} is no worse than {expected.than}, within {metric.gap(expected.within)}"
    else:
        answer = _answer(low > expected.by, high < expected.by)
        more = f" by more than {metric.gap(expected.by)}" if expected.by else ""
        words = f"{expected.worse} is worse than {expected.than}{more}"
    return Finding(
        expected=words,
        low=None if interval is None else interval[0],
        high=None if interval is None else interval[1],
        answer=answer,
    )


def _ratio(expected: More | NoMore, ours: dict[int, float], theirs: dict[int, float]) -> Finding:
    ratios = [ours[seed] / theirs[seed] for seed in sorted(ours.keys() & theirs.keys()) if theirs[seed]]
    interval = interval_of(ratios)
    low, high = interval or (-math.inf, math.inf)
    shown, refuted = low > expected.times, high < expected.times
    one, other = expected.variants
    limit = "more" if isinstance(expected, More) else "less"
    return Finding(
        expected=f"{expected.of}: {one} has {limit} than {expected.times:g} times that of {other}",
        low=None if interval is None else low,
        high=None if interval is None else high,
        answer=_answer(shown, refuted) if isinstance(expected, More) else _answer(refuted, shown),
        of=expected.of,
    )


def _answer(is_shown: bool, is_refuted: bool) -> Answer:
    return "holds" if is_shown else "does not hold" if is_refuted else "not shown"


def _verdict(answers: list[Answer]) -> Verdict:
    if all(answer == "holds" for answer in answers):
        return "holds here"
    if "holds" in answers:
        return "holds in part"
    return "does not hold here" if "does not hold" in answers else "not shown"
