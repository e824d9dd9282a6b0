"""A claim's page as Markdown: the claim, the verdict, what each variant came to, and each expectation."""

from collections.abc import Iterable, Sequence
from itertools import chain
from textwrap import wrap

from service.claims.verdict import ClaimReport, Finding, VariantResult
from service.scaling.metric import Metric

WIDTH = 118
READING = (
    "± is one standard deviation over seeds. A difference is taken seed by seed; each side of its interval holds with"
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
        lines += [f"![What each variant came to, and its test curve]({picture})", ""]
    lines += [*_variants(report.variants, report.metric), "", *_findings(report.findings, report.metric), ""]
    lines += [
        *wrap(f"{READING} {report.confidence:.0%} confidence.", WIDTH),
        "",
    ]
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


def _variants(variants: Iterable[VariantResult], metric: Metric) -> list[str]:
    rows = []
    for one in variants:
        seeds = ", ".join(
            [str(len(one.costs)), *([f"{one.diverged} diverged"] if one.diverged else [])]
            + ([f"{one.missing} without a result"] if one.missing else [])
        )
        spread = "" if one.std is None else f" ± {metric.spread(one.std)}"
        rows.append((one.name, "-" if one.mean is None else metric.number(one.mean) + spread + metric.unit, seeds))
    return _table(("variant", metric.name, "seeds"), rows)


def _findings(findings: Iterable[Finding], metric: Metric) -> list[str]:
    rows = []
    for one in findings:
        known = one.low is not None and one.high is not None
        between = f"{metric.spread(one.low or 0.0, '+')} to {metric.spread(one.high or 0.0, '+')}" if known else "-"
        rows.append((one.expected, between, one.answer))
    return _table(("expected", "difference", "answer"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
