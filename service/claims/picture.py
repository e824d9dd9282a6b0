"""A claim's picture: a dot for each seed, a bar for each mean, and the test curves beside them, as PNG and SVG."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from service.claims.verdict import ClaimReport, VariantResult
from service.scaling.counted import Quantity
from service.scaling.drawing import LEGEND, band, files, log_axis, panels
from service.scaling.evidence import Evidence, Trial
from service.scaling.statistics import mean, std

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
"""Of Okabe and Ito (2008), which colour-blind readers tell apart."""


def claim_picture(report: ClaimReport, evidence: Evidence) -> dict[str, bytes]:
    """`png` and `svg`: what the variants came to, each quantity that is judged, and their curves by epochs."""
    quantities = list(report.variants[0].quantities)
    has_metric = any(variant.costs or variant.diverged for variant in report.variants) or not quantities
    count = len(quantities) + 2 * has_metric
    figure, found = panels(count, 6.0 if count < 3 else 5.2, 0.8 + 0.45 * max(6, len(report.variants)))
    for axes, of in zip(found[has_metric:], quantities, strict=False):
        _quantity(axes, report, of)
    if has_metric:
        _results(found[0], report)
        _curves(found[-1], report, evidence)
    return files(figure)


def _quantity(axes: Axes, report: ClaimReport, of: Quantity) -> None:
    for place, variant in enumerate(report.variants):
        values = list(variant.quantities[of].values())
        _dots(axes, place, values, has_mean=bool(values))
    _rows(axes, report)
    axes.set_xlim(left=0)
    axes.set_xlabel(of)


def _dots(axes: Axes, place: int, values: list[float], has_mean: bool) -> None:
    """A dot for each seed, and a bar for their mean."""
    colour = PALETTE[place % len(PALETTE)]
    axes.plot(values, np.full(len(values), place), "o", color=colour, alpha=0.55, markersize=6)
    if has_mean:
        axes.plot([mean(values)] * 2, [place - 0.28, place + 0.28], color=colour, linewidth=2.5)


def _results(axes: Axes, report: ClaimReport) -> None:
    factor = report.metric.factor
    for place, variant in enumerate(report.variants):
        _dots(axes, place, [factor * cost for cost in variant.costs.values()], has_mean=variant.mean is not None)
        if variant.diverged:
            where = (1.0, place)
            axes.annotate(f"{variant.diverged} diverged", where, xycoords=("axes fraction", "data"), ha="right")
    _rows(axes, report)
    axes.set_xlabel(_label(report))


def _rows(axes: Axes, report: ClaimReport) -> None:
    """A row a variant."""
    axes.set_yticks(range(len(report.variants)), [variant.name for variant in report.variants])
    axes.set_ylim(len(report.variants) - 0.5, -0.5)


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
