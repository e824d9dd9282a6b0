"""A claim's page as Markdown: the claim, the verdict, what each variant came to, and each expectation."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from textwrap import wrap

from service.claims.verdict import ClaimReport, Finding, Results
from service.scaling.metric import Metric
from service.scaling.statistics import Seeds

WIDTH = 118
READING = (
    "± is one standard deviation over seeds. A difference or a ratio is taken seed by seed; each side of its interval "
    "holds with"
)


def claim_page(report: ClaimReport, made: Sequence[str] = (), picture: str = "") -> str:
    """For people.

    Args:
        made: Lines on how it was made, such as the command, the processor and the commit.
        picture: Address of the picture; empty: without it.
    """
    note = " (a quick run, which only shows that the command works)" if report.quick else ""
    lines = [
        f"# Claim {report.number}: {report.name}",
        "",
        *(f"> {line}" for line in wrap(report.claim, WIDTH - 2)),
        "",
    ]
    lines += [f"Source: {report.source}.", "", f"**The claim {_told(report)}**{note}.", ""]
    if picture:
        beside = "its test curve" if report.before is None else "the networks before"
        lines += [f"![What each variant came to, and {beside}]({picture})", ""]
    lines += [*_variants(report), "", *_findings(report.findings, report.metric), ""]
    lines += [
        *wrap(f"{READING} {report.confidence:.0%} confidence.", WIDTH),
        "",
    ]
    if report.shares:
        lines += ["## The fullest of so many servers", "", *_shares(report.shares), ""]
    if report.before is not None:
        lines += ["## The networks before", "", *_variants(report.before), ""]
    if report.breaking:
        items = [wrap(f"- {sentence}", WIDTH, subsequent_indent="  ") for sentence in report.breaking]
        lines += ["## Where each rule breaks", "", *chain.from_iterable(items), ""]
    lines += [
        "## What differs from the paper",
        "",
        *wrap(report.differs, WIDTH),
        "",
    ]
    if made:
        lines += ["## How it was made", "", *(f"- {line}" for line in made), ""]
    return "\n".join(lines)


def _told(report: ClaimReport) -> str:
    return "is not shown either way" if report.verdict == "not shown" else report.verdict


def _variants(results: Results) -> list[str]:
    metric, quantities = results.metric, list(results.variants[0].quantities)
    has_metric = any(one.costs or one.diverged for one in results.variants)
    rows = []
    for one in results.variants:
        trained = one.costs if has_metric else next(iter(one.quantities.values()), {})
        seeds = ", ".join(
            [str(len(trained)), *([f"{one.diverged} diverged"] if one.diverged else [])]
            + ([f"{one.missing} without a result"] if one.missing else [])
        )
        spread = "" if one.std is None else f" ± {metric.spread(one.std)}"
        cost = "-" if one.mean is None else metric.number(one.mean) + spread + metric.unit
        counted = [_counted(one.quantities[of].values()) for of in quantities]
        rows.append((one.name, *([cost] if has_metric else []), *counted, seeds))
    return _table(("variant", *([metric.name] if has_metric else []), *quantities, "seeds"), rows)


def _shares(shares: Mapping[str, Mapping[int, float]]) -> list[str]:
    counts = next(iter(shares.values()))
    rows = [(str(count), *(f"{100 * found[count]:.1f} %" for found in shares.values())) for count in counts]
    return _table(("servers", *shares), rows)


def _counted(values: Iterable[float]) -> str:
    """Mean and spread of a quantity, to three or four digits."""
    seeds = Seeds.of(list(values))
    if not seeds.errors:
        return "-"
    digits = max(0, 2 - math.floor(math.log10(abs(seeds.mean)))) if seeds.mean else 0
    spread = f" ± {seeds.std:,.{digits}f}" if seeds.std and seeds.std > 1e-6 * abs(seeds.mean) else ""
    return f"{seeds.mean:,.{digits}f}{spread}"


def _findings(findings: Iterable[Finding], metric: Metric) -> list[str]:
    rows = []
    for one in findings:
        known = one.low is not None and one.high is not None
        if one.of is not None:
            rows.append((one.expected, f"{one.low:.3g} to {one.high:.3g} times" if known else "-", one.answer))
            continue
        between = f"{metric.spread(one.low or 0.0, '+')} to {metric.spread(one.high or 0.0, '+')}" if known else "-"
        rows.append((one.expected, between, one.answer))
    return _table(("expected", "difference", "answer"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
