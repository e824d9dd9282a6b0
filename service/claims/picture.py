"""A claim's picture: a dot for each seed, a bar for each mean, and the test curves beside them, as PNG and SVG."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from service.claims.verdict import ClaimReport, VariantResult
from service.scaling.drawing import LEGEND, band, files, log_axis, panels
from service.scaling.evidence import Evidence, Trial
from service.scaling.statistics import mean, std

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
"""Of Okabe and Ito (2008), which colour-blind readers tell apart."""


def claim_picture(report: ClaimReport, evidence: Evidence) -> dict[str, bytes]:
    """`png` and `svg`: what the variants came to, and their curves by epochs."""
    _, (left, right) = panels(2, 6.0, 0.8 + 0.45 * max(6, len(report.variants)))
    _results(left, report)
    _curves(right, report, evidence)
    figure = left.figure
    assert figure is not None
    return files(figure)  # type: ignore[arg-type]  # not a part of another figure


def _results(axes: Axes, report: ClaimReport) -> None:
    factor = report.metric.factor
    for place, variant in enumerate(report.variants):
        colour = PALETTE[place % len(PALETTE)]
        values = [factor * cost for cost in variant.costs.values()]
        axes.plot(values, np.full(len(values), place), "o", color=colour, alpha=0.55, markersize=6)
        if variant.mean is not None:
            axes.plot([factor * variant.mean] * 2, [place - 0.28, place + 0.28], color=colour, linewidth=2.5)
        if variant.diverged:
            where = (1.0, place)
            axes.annotate(f"{variant.diverged} diverged", where, xycoords=("axes fraction", "data"), ha="right")
    axes.set_yticks(range(len(report.variants)), [variant.name for variant in report.variants])
    axes.set_ylim(len(report.variants) - 0.5, -0.5)
    axes.set_xlabel(_label(report))


def _curves(axes: Axes, report: ClaimReport, evidence: Evidence) -> None:
    for place, variant in enumerate(report.variants):
        costs: dict[float, list[float]] = defaultdict(list)
        for trial in _of(variant, evidence.trials):
            for point in trial.points:
                if point.test_error is not None:
                    costs[round(point.epoch, 3)].append(report.metric.factor * point.test_error)
        at = sorted(costs)
        rows = [mean(costs[epoch]) for epoch in at], [std(costs[epoch]) or 0.0 for epoch in at]
        band(axes, at, np.array(rows), variant.name, color=PALETTE[place % len(PALETTE)])
    axes.set_xlabel("epochs")
    shown = [float(point) for line in axes.lines for point in np.asarray(line.get_ydata())]
    if shown and min(shown) > 0:
        log_axis(axes, _label(report), (min(shown) / 1.1, max(shown) * 1.1))
    axes.set_ylabel(_label(report))
    axes.legend(**LEGEND)


def _label(report: ClaimReport) -> str:
    return f"{report.metric.measured_on} {report.metric.name}{report.metric.unit.replace(' %', ' (%)')}"


def _of(variant: VariantResult, trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.settings.get("variant") == variant.name]
