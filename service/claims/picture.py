"""A claim's picture: a dot for each seed, a bar for each mean, and the learning curves beside them, as PNG and SVG."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from service.claims.verdict import ClaimReport, VariantResult
from service.scaling.drawing import LEGEND, band, files, panels
from service.scaling.evidence import Evidence, Trial
from service.scaling.loss_curves import last_epoch, loss_curve, mean_and_spread, together

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
"""Of Okabe and Ito (2008), which colour-blind readers tell apart."""
POINTS = 100


def claim_picture(report: ClaimReport, evidence: Evidence) -> dict[str, bytes]:
    """`png` and `svg`: what the variants came to, and their training loss by epochs."""
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
        values = [factor * cost for cost in variant.costs]
        axes.plot(values, np.full(len(values), place), "o", color=colour, alpha=0.55, markersize=6)
        if variant.mean is not None:
            axes.plot([factor * variant.mean] * 2, [place - 0.28, place + 0.28], color=colour, linewidth=2.5)
        if variant.diverged:
            where = (1.0, place)
            axes.annotate(f"{variant.diverged} diverged", where, xycoords=("axes fraction", "data"), ha="right")
    axes.set_yticks(range(len(report.variants)), [variant.name for variant in report.variants])
    axes.set_ylim(len(report.variants) - 0.5, -0.5)
    axes.set_xlabel(f"{report.metric.measured_on} {report.metric.name}{report.metric.unit.replace(' %', ' (%)')}")


def _curves(axes: Axes, report: ClaimReport, evidence: Evidence) -> None:
    epochs = max((last_epoch(trial.points) for trial in evidence.trials), default=0.0)
    if not epochs:
        return
    at = np.linspace(0.0, epochs, POINTS + 1)[1:]
    for place, variant in enumerate(report.variants):
        curves = [loss_curve(trial.points, epochs) for trial in _of(variant, evidence.trials)]
        rows = together([curve for curve in curves if len(curve.epochs)], at)
        if len(rows):
            mean, spread, _ = mean_and_spread(rows)
            band(axes, at, (mean, spread), variant.name, color=PALETTE[place % len(PALETTE)])
    axes.set_xlabel("epochs")
    axes.set_ylabel("training loss")
    axes.set_yscale("log")
    axes.legend(**LEGEND)


def _of(variant: VariantResult, trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.settings.get("variant") == variant.name]
