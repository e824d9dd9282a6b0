"""Timings as a picture: time against size with its line, and below it how many times longer the CPU takes."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from trainers.cost.figures import LayerName, Timings, slope_words, work

TITLES: dict[LayerName, tuple[str, str]] = {
    "convolution": ("convolution, 96 filters 11x11, stride 4", "images of 224x224 at once"),
    "fully_connected": ("fully connected layer, n x n", "n"),
}
"""Title and axis of a layer's column."""


def plot_timings(timings: Timings, path: Path) -> None:
    """Write a PNG: a column a layer; a second row where there is a GPU beside the CPU."""
    rows = 2 if timings.ratios else 1
    figure = Figure(figsize=(11, 4 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, 2, squeeze=False)
    for column, layer in enumerate(TITLES):
        _times(grid[0, column], timings, layer)
        if timings.ratios:
            _ratios(grid[1, column], timings, layer)
    figure.savefig(path, format="png", dpi=120)


def _times(axes: Axes, timings: Timings, layer: LayerName) -> None:
    title, label = TITLES[layer]
    for curve in timings.curves:
        if curve.layer != layer:
            continue
        sizes = [timing.size for timing in curve.timings]
        means = [1000 * timing.mean_s for timing in curve.timings]
        spreads = [1000 * timing.spread_s for timing in curve.timings]
        points = axes.errorbar(sizes, means, spreads, fmt="o", capsize=3, label=f"{curve.device}, {curve.hardware}")
        if curve.line is not None:
            label = f"slope {slope_words(layer, curve.line.slope_s)}"
            xs = [sizes[0] + (sizes[-1] - sizes[0]) * step / 100 for step in range(101)]
            line = [1000 * (curve.line.intercept_s + curve.line.slope_s * work(layer, x)) for x in xs]
            axes.plot(xs, line, color=points[0].get_color(), label=label)
    axes.set(title=title, xlabel=label, ylabel="ms a forward pass")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")


def _ratios(axes: Axes, timings: Timings, layer: LayerName) -> None:
    for ratio in timings.ratios:
        if ratio.layer == layer:
            axes.plot(list(ratio.by_size), list(ratio.by_size.values()), "o-", label=ratio.device)
    axes.set(xlabel=TITLES[layer][1], ylabel="CPU time / GPU time")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")
