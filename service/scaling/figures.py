"""The scaling report's figures as PNG and SVG."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from service.scaling.cells import BASE, Cell, Group, Groups, Method, grouped
from service.scaling.drawing import (
    COLOURS,
    DASHES,
    LEGEND,
    Looks,
    band,
    batch_axis,
    files,
    legend_below,
    log_axis,
    panels,
    spread_of,
)
from service.scaling.evidence import Evidence, Question
from service.scaling.loss_curves import last_epoch, loss_curve, mean_and_spread, together
from service.scaling.rates import RULES
from service.scaling.report import ScalingReport, VariantReport
from service.scaling.targets import TimeToTarget

MOST_PANELS = 9
HEADROOM = 12
"""What exceeds the baseline by more tolerances than this is drawn at the upper edge."""


def figures(report: ScalingReport, evidence: Evidence) -> Iterator[tuple[str, bytes]]:
    """Names and files, `error.png` and `error.svg` and so on; with several variants `error-1.png`, as in the report.

    A figure for which there is nothing to draw is left out. evidence: what the report was made of.
    """
    groups = grouped(evidence)
    for number, variant in enumerate(report.variants, 1):
        suffix = f"-{number}" if len(report.variants) > 1 else ""
        trials = {key: g for key, g in groups[tuple(variant.variant.items())].items() if key[0].multiple == 1}
        drawn: dict[str, Callable[[], Figure | None]] = {
            "error": partial(_error, variant, report.question),
            "rates": partial(_rates, variant),
            "curves": partial(_curves, trials, report.question),
            "target": partial(_target, variant, report.question),
        }
        for name, draw in drawn.items():
            if (figure := draw()) is not None:
                _entitle(figure, variant)
                for form, data in files(figure).items():
                    yield f"{name}{suffix}.{form}", data


def _error(variant: VariantReport, question: Question) -> Figure | None:
    """Error against batch (paper 4, figure 1)."""
    baseline = variant.baseline
    if baseline is None or not baseline.errors:
        return None
    figure, (axes,) = panels(1, 7, 4.5)
    draw_errors(axes, variant, question)
    axes.legend(**LEGEND, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def draw_errors(axes: Axes, variant: VariantReport, question: Question) -> None:
    """Error against batch, a line for each method, without a legend. Of a variant whose baseline has an error."""
    baseline = variant.baseline
    assert baseline is not None
    cells = [cell for cell in variant.cells if cell.multiple == 1]
    metric = question.metric
    scale = 100 if metric.is_error else 1  # of costs: of metrics of which more is better, worse is upward too
    centre, tolerance = scale * baseline.seeds.mean, scale * question.tolerance
    top = min(max([centre, *(scale * c.mean for c in cells if c.mean is not None)]), centre + HEADROOM * tolerance)
    top += tolerance
    axes.axhspan(
        centre,
        centre + tolerance,
        color="0.9",
        zorder=0,
        label=f"at most {tolerance:.3g}{' points' if metric.is_error else ''} worse",
    )
    methods = _in_order(cell.method for cell in cells if cell is not baseline)
    looks = Looks(methods)
    for method, shift in zip(methods, spread_of(len(methods)), strict=True):
        own = [cell for cell in cells if cell.method == method or cell is baseline]
        look = {**looks.of(method), "label": _plain(str(method))}
        _error_line(axes, own, question, look, 2**shift, top)
    spread = [scale * (baseline.seeds.std or 0.0)]
    label = f"baseline, batch {question.base_batch}"
    axes.errorbar([question.base_batch], [centre], spread, fmt="D", color="black", capsize=3, zorder=8, label=label)
    axes.plot([], [], "o", color="0.3", markerfacecolor="white", label="beyond the scale")
    axes.plot([], [], "x", color="0.3", label="a seed broke")
    lows = [scale * (cell.mean - 2 * (cell.std or 0.0)) for cell in cells if cell.mean is not None]
    axes.set_ylim(min([*lows, centre - tolerance]), top)
    axes.set_ylabel(
        f"{metric.measured_on} {_plain(metric.name)}{' (%)' if metric.is_error else ''}, mean ± std over seeds"
    )
    if metric.higher_is_better:
        axes.yaxis.set_major_formatter(lambda cost, _: f"{metric.value(cost):.4g}")
    batch_axis(axes, [cell.batch for cell in cells])


def _error_line(
    axes: Axes, cells: Sequence[Cell], question: Question, look: dict[str, object], shift: float, top: float
) -> None:
    """One method with its bars, from the baseline on; at the upper edge a hollow marker where its error is off the
    scale, and a cross where a seed broke."""
    base, scale = question.base_batch, 100 if question.metric.is_error else 1
    drawn = sorted((c for c in cells if c.mean is not None), key=lambda cell: cell.batch)
    x = np.array([cell.batch * (1.0 if cell.batch == base else shift) for cell in drawn])
    y = np.array([scale * (cell.mean or 0.0) for cell in drawn])
    bars = [0.0 if cell.batch == base else scale * (cell.std or 0.0) for cell in drawn]
    axes.errorbar(x, y, bars, markersize=5, linewidth=1.5, capsize=2.5, **look)  # type: ignore[arg-type]
    edge = {"color": look["color"], "linestyle": "none", "clip_on": False, "in_layout": False, "zorder": 9}
    off = x[y > top]
    axes.plot(off, np.full(len(off), top), marker=look["marker"], markerfacecolor="white", **edge)  # type: ignore[arg-type]
    broke = [cell.batch * shift for cell in cells if cell.diverged]
    axes.plot(broke, np.full(len(broke), top), marker="x", markersize=8, **edge)  # type: ignore[arg-type]


def _rates(variant: VariantReport) -> Figure | None:
    """The best rate at each batch against what the rules predict (paper 4, table 2a)."""
    rows = variant.rates
    best = [(row.batch, row.best_lr) for row in rows if row.best_lr is not None]
    if not best:
        return None
    figure, (axes,) = panels(1, 7, 4.5)
    for rule, dash in zip(RULES, DASHES, strict=False):
        predicted = [row.predicted[rule] for row in rows]
        axes.plot([row.batch for row in rows], predicted, color=COLOURS[rule], linestyle=dash, label=f"{rule} predicts")
    tried = [(row.batch, t.lr) for row in rows for t in row.tried]
    axes.plot(*zip(*tried, strict=True), "o", color="0.7", markersize=4, label="tried", zorder=3)
    good = [(row.batch, [t.lr for t in row.tried if t.as_good]) for row in rows if row.best_lr is not None]
    axes.vlines(
        [batch for batch, _ in good], [min(rates) for _, rates in good], [max(rates) for _, rates in good],
        color="0.45", linewidth=3, label="not shown to be worse", zorder=2,
    )  # fmt: skip
    axes.plot(*zip(*best, strict=True), "D", color="black", markersize=6, label="best", zorder=4)
    log_axis(axes, "learning rate in force")
    batch_axis(axes, [row.batch for row in rows])
    axes.legend(**LEGEND, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _curves(groups: Groups, question: Question) -> Figure | None:
    """Training curves laid over the baseline's, one panel a batch (paper 4, figure 3)."""
    drawn = {key: group for key, group in groups.items() if any(trial.points for trial in group.trials)}
    base = drawn.pop((BASE, question.base_batch), None)
    batches = sorted({batch for _, batch in drawn})
    epochs = max((last_epoch(t.points) for g in (base, *drawn.values()) if g for t in g.trials), default=0.0)
    if base is None or not batches or epochs <= 0:
        return None
    methods = _in_order(method for method, _ in drawn)
    looks = Looks(methods)
    picked = sorted(
        {batches[i] for i in np.linspace(0, len(batches) - 1, min(len(batches), MOST_PANELS)).round().astype(int)}
    )
    figure, found = panels(len(picked), 3.3, 2.7)
    limits = _scale(base, epochs)
    for axes, batch in zip(found, picked, strict=True):
        look = {"color": "0.7", "linewidth": 4, "solid_capstyle": "butt"}
        _curve(axes, base, epochs, f"baseline, batch {question.base_batch}", look)
        for method in methods:
            if (method, batch) in drawn:
                _curve(axes, drawn[method, batch], epochs, _plain(str(method)), {**looks.of(method), "marker": None})
        axes.set_title(f"batch {batch}", fontsize=9)
        if limits and limits[0] > 0:
            log_axis(axes, "", limits)
        elif limits:
            axes.set_ylim(*limits)
        axes.set_xlabel("epoch", fontsize=9)
        axes.tick_params(labelsize=8)
    figure.supylabel("training loss, mean ± std over seeds", fontsize=9)
    legend_below(figure, found)
    return figure


def _curve(axes: Axes, group: Group, epochs: float, label: str, look: dict[str, object]) -> None:
    curves = [loss_curve(trial.points, epochs) for trial in group.trials]
    at = np.unique(np.concatenate([curve.epochs for curve in curves]))
    if len(at):
        mean, spread, count = mean_and_spread(together(curves, at))
        seen = count > 0
        band(axes, at[seen], (mean[seen], spread[seen]), label, **look)


def _scale(base: Group, epochs: float) -> tuple[float, float] | None:
    """Limits that show the baseline whole: a curve that breaks leaves at the top."""
    values = [value for t in base.trials for value in loss_curve(t.points, epochs).values.tolist()]
    if not values:
        return None
    low, high = min(values), max(values)
    if low > 0:
        return low / 1.3, high * 1.3
    room = max(high - low, 1e-3 * abs(low)) or 1.0  # some, of what is all the same, however large
    return low - 0.1 * room, high + 0.25 * room


def _target(variant: VariantReport, question: Question) -> Figure | None:
    """Time and updates to the target error (paper 3, table II)."""
    rows = [row for row in variant.targets if row.multiple == 1 and row.examples and row.seconds]
    base = next((row for row in rows if row.batch == question.base_batch), None)
    if base is None or len(rows) < 2:
        return None
    figure, (left, right) = panels(2, 4.6, 4.2)
    methods = _in_order(row.method for row in rows if row is not base)
    looks = Looks(methods)
    for method in methods:
        line = sorted((row for row in rows if row.method == method or row is base), key=lambda row: row.batch)
        _target_line(left, line, lambda row: row.seconds, {**looks.of(method), "label": _plain(str(method))})
        _target_line(right, line, lambda row: row.updates, {**looks.of(method), "label": _plain(str(method))})
    batches = sorted({row.batch for row in rows})
    ideal = [(base.updates or 0.0) * question.base_batch / batch for batch in batches]
    right.plot(batches, ideal, color="0.5", linewidth=1, linestyle=":", label="as many examples as the baseline")
    for axes, kind in ((left, "seconds"), (right, "updates")):
        log_axis(axes, f"{kind} to {_plain(question.metric.reaching(base.target_error))}")
        batch_axis(axes, batches)
    legend_below(figure, [left, right])
    return figure


def _target_line(
    axes: Axes, rows: Sequence[TimeToTarget], value: Callable[[TimeToTarget], float | None], look: dict[str, object]
) -> None:
    """One method; a hollow marker where not every trial met the target."""
    x, y = [row.batch for row in rows], [value(row) for row in rows]
    axes.plot(x, y, linewidth=1.5, markersize=5, **look)  # type: ignore[arg-type]
    part = [(a, b) for a, b, row in zip(x, y, rows, strict=True) if row.reached < row.of]
    hollow = {"color": look["color"], "marker": look["marker"], "linestyle": "none", "markerfacecolor": "white"}
    axes.plot([a for a, _ in part], [b for _, b in part], zorder=4, **hollow)  # type: ignore[arg-type]


def _in_order(methods: Iterable[Method]) -> list[Method]:
    """From the lowest rate to the highest."""
    return sorted(set(methods), key=lambda method: (RULES.index(method.rule), method.warmup != "none", method))


def _entitle(figure: Figure, variant: VariantReport) -> None:
    if variant.variant:
        words = ", ".join(f"{path} = {value}" for path, value in variant.variant.items())
        figure.suptitle(_plain(words), fontsize=9)


def _plain(text: str) -> str:
    """Text that is drawn as it stands: a dollar sign would begin a formula."""
    return text.replace("$", r"\$")
