"""A claim's picture, as PNG and SVG: what the variants came to, and their test curves beside that.

Where rules are compared over batches, the left part is paper 4's figure 1, and the right has the best rule's curves.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from service.claims.claim import variant_name
from service.claims.verdict import ClaimReport, Results, VariantResult
from service.scaling.counted import Quantity
from service.scaling.drawing import LEGEND, band, files, log_axis, panels
from service.scaling.evidence import Evidence, Trial
from service.scaling.figures import draw_errors
from service.scaling.report import VariantReport, scaling_report
from service.scaling.statistics import mean, std

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
"""Of Okabe and Ito (2008), which colour-blind readers tell apart."""


def claim_picture(report: ClaimReport, evidence: Evidence) -> dict[str, bytes]:
    """`png` and `svg`."""
    scaling = scaling_report(evidence).variants[0] if report.breaking else None
    if scaling is None or scaling.baseline is None or not scaling.baseline.errors or not scaling.rules:
        return _variants(report, evidence)
    figure, (left, right) = panels(2, 6.0, 4.6)
    draw_errors(left, scaling, evidence.question)
    left.legend(**LEGEND, loc="upper left")
    _curves(right, report, evidence, _by_batch(scaling, evidence))
    right.legend(**LEGEND)
    return files(figure)


def _variants(report: ClaimReport, evidence: Evidence) -> dict[str, bytes]:
    """A row for each variant, with a part for the metric and each quantity that is judged. The rows say which variant
    has which colour, also in the curves beside them."""
    looks = _colours(report)
    quantities = list(report.variants[0].quantities)
    has_metric = any(variant.costs or variant.diverged for variant in report.variants) or not quantities
    has_second = has_metric and (report.before is not None or _has_curves(evidence))
    count = len(quantities) + has_metric + has_second + bool(report.shares)
    figure, found = panels(count, 6.0 if count < 3 else 5.2, 0.8 + 0.45 * max(6, len(report.variants)))
    for axes, of in zip(found[has_metric:], quantities, strict=False):
        _quantity(axes, report, of, looks)
    if has_metric:
        _results(found[0], report, looks)
    if has_second and report.before is not None:
        _results(found[1 + len(quantities)], report.before, _colours(report.before))
    elif has_second:
        _curves(found[1 + len(quantities)], report, evidence, looks)
    if report.shares:
        _shares(found[-1], report.shares)
    return files(figure)


def _shares(axes: Axes, shares: Mapping[str, Mapping[int, float]]) -> None:
    """What the fullest server holds, over the number of servers."""
    for place, (name, found) in enumerate(shares.items()):
        dash = "-o" if place % 2 == 0 else "--"
        axes.plot(list(found), [100 * s for s in found.values()], dash, color=PALETTE[place // 2], label=name, ms=4)
    axes.set_xticks(list(next(iter(shares.values()))))
    axes.set_ylim(0, 105)
    axes.set_xlabel("servers")
    axes.set_ylabel("share of the fullest (%)")
    axes.legend(**LEGEND)


def _colours(results: Results) -> dict[str, str]:
    return {one.name: PALETTE[place % len(PALETTE)] for place, one in enumerate(results.variants)}


def _quantity(axes: Axes, report: ClaimReport, of: Quantity, looks: Mapping[str, str]) -> None:
    workers = [re.fullmatch(r"(\d+) workers?", variant.name) for variant in report.variants]
    if all(workers):
        _by_workers(
            axes, {int(one[1]): v.quantities[of] for one, v in zip(workers, report.variants, strict=True) if one}
        )
        axes.set_ylabel(of)
        return
    for place, variant in enumerate(report.variants):
        values = list(variant.quantities[of].values())
        _dots(axes, place, values, looks[variant.name], has_mean=bool(values))
    _rows(axes, report)
    axes.set_xlim(left=0)
    axes.set_xlabel(of)


def _by_workers(axes: Axes, found: Mapping[int, Mapping[int, float]]) -> None:
    """A quantity over the number of workers, beside one that grows in proportion to them."""
    means = {count: mean(list(values.values())) for count, values in found.items() if values}
    for count, values in found.items():
        axes.plot([count] * len(values), list(values.values()), "o", color=PALETTE[0], alpha=0.55, markersize=6)
    axes.plot(list(means), list(means.values()), color=PALETTE[0], linewidth=1.8, label="measured")
    if means:
        first, last = min(means), max(means)
        ends = [means[first], means[first] * last / first]
        axes.plot([first, last], ends, "--", color="0.6", linewidth=1.2, label="in proportion to the workers")
        axes.set_ylim(0, 1.35 * max(means.values()))
    axes.set_xlim(left=0)
    axes.set_xticks(list(found))
    axes.set_xlabel("workers")
    axes.legend(**LEGEND, loc="lower right")


def _dots(axes: Axes, place: int, values: list[float], colour: str, has_mean: bool) -> None:
    """A dot for each seed, and a bar for their mean."""
    axes.plot(values, np.full(len(values), place), "o", color=colour, alpha=0.55, markersize=6)
    if has_mean:
        axes.plot([mean(values)] * 2, [place - 0.28, place + 0.28], color=colour, linewidth=2.5)


def _by_batch(scaling: VariantReport, evidence: Evidence) -> dict[str, str]:
    """The variants of the best rule, from the base batch to the largest, in colours that grow lighter."""
    best, base = scaling.rules[0].rule, evidence.question.base_batch
    trials = sorted((t for t in evidence.trials if t.batch == base or t.rule == best), key=lambda trial: trial.batch)
    names = list(dict.fromkeys(variant_name(trial.settings) for trial in trials))
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(names)))
    return dict(zip(names, (matplotlib.colors.to_hex(shade) for shade in shades), strict=True))


def _results(axes: Axes, results: Results, looks: Mapping[str, str]) -> None:
    factor = results.metric.factor
    for place, variant in enumerate(results.variants):
        values = [factor * cost for cost in variant.costs.values()]
        _dots(axes, place, values, looks[variant.name], has_mean=variant.mean is not None)
        if variant.diverged:
            where = (1.0, place)
            axes.annotate(f"{variant.diverged} diverged", where, xycoords=("axes fraction", "data"), ha="right")
    _rows(axes, results)
    axes.set_xlabel(_label(results))


def _rows(axes: Axes, results: Results) -> None:
    """A row a variant."""
    axes.set_yticks(range(len(results.variants)), [variant.name for variant in results.variants])
    axes.set_ylim(len(results.variants) - 0.5, -0.5)


def _has_curves(evidence: Evidence) -> bool:
    """Whether a trial was evaluated more than once."""
    return any(sum(point.test_error is not None for point in trial.points) > 1 for trial in evidence.trials)


def _curves(axes: Axes, report: ClaimReport, evidence: Evidence, looks: Mapping[str, str]) -> None:
    for variant in (one for one in report.variants if one.name in looks):
        costs: dict[float, list[float]] = defaultdict(list)
        for trial in _of(variant, evidence.trials):
            for point in trial.points:
                if point.test_error is not None:
                    costs[round(point.epoch, 3)].append(report.metric.factor * point.test_error)
        at = sorted(costs)
        rows = [mean(costs[epoch]) for epoch in at], [std(costs[epoch]) or 0.0 for epoch in at]
        band(axes, at, np.array(rows), variant.name, color=looks[variant.name])
    axes.set_xlabel("epochs")
    shown = [float(point) for line in axes.lines for point in np.asarray(line.get_ydata())]
    if shown and min(shown) > 0:
        log_axis(axes, _label(report), (min(shown) / 1.1, max(shown) * 1.1))
    axes.set_ylabel(_label(report))


def _label(results: Results) -> str:
    return f"{results.metric.measured_on} {results.metric.name}{results.metric.unit.replace(' %', ' (%)')}"


def _of(variant: VariantResult, trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if variant_name(trial.settings) == variant.name]
