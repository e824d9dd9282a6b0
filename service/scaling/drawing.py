"""What the figures share: axes of batches, a look for each method, and files. Nothing here touches pyplot's state."""

import io
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from service.scaling.cells import Method
from service.scaling.evidence import Rule

COLOURS: dict[Rule, str] = {"none": "#0072B2", "sqrt": "#E69F00", "linear": "#D55E00"}
"""Of Okabe and Ito (2008), which colour-blind readers tell apart; markers and dashes tell the same in grey."""
MARKERS: dict[Rule, str] = {"none": "o", "sqrt": "s", "linear": "^"}
DASHES: tuple[Any, ...] = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (4, 1.5, 1, 1.5)))
DOTS_PER_INCH = 144
LEGEND: dict[str, Any] = {"fontsize": 8, "frameon": False, "handlelength": 3.2}
MOST_TICKS = 12


class Looks:
    """A colour and marker for each rule, dashes for each warm-up: the same in all figures of a report."""

    def __init__(self, methods: Iterable[Method]) -> None:
        self.warmups = sorted({method.warmup for method in methods} - {"none"})

    def of(self, method: Method) -> dict[str, Any]:
        """Keyword arguments of `plot`."""
        place = 1 + self.warmups.index(method.warmup) if method.warmup in self.warmups else 0
        dash = DASHES[place % len(DASHES)]
        return {"color": COLOURS[method.rule], "marker": MARKERS[method.rule], "linestyle": dash}


def panels(count: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels, three a row; width and height of each in inches."""
    columns = min(count, 3)
    rows = -(-count // columns)
    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for axes in grid[count:]:
        axes.set_axis_off()
    for axes in grid[:count]:
        axes.grid(color="0.92", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, grid[:count]


def batch_axis(axes: Axes, batches: Iterable[int]) -> None:
    """A scale of powers of two with a mark at each batch that was tried."""
    found = sorted(set(batches))
    marked = found[:: -(-len(found) // MOST_TICKS)]
    axes.set_xscale("log", base=2)
    axes.set_xlim(found[0] / 2**0.4, found[-1] * 2**0.4)
    axes.xaxis.set_major_locator(FixedLocator(marked))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(round(value))))
    axes.set_xlabel("batch (examples an update)")


def log_axis(axes: Axes, label: str, limits: tuple[float, float] | None = None) -> None:
    """The upright axis in decades, marked in plain numbers, however few decades there are."""
    axes.set_yscale("log", base=10)
    low, high = limits or axes.get_ylim()
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(LogLocator(10, (1, 2, 5)) if high > 8 * low else MaxNLocator(5))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_ylabel(label)


def short(batch: int) -> str:
    """As the papers write it: 1k is 1024."""
    return f"{batch // 1024}k" if batch >= 1024 and batch % 1024 == 0 else str(batch)


def band(axes: Axes, x: Any, rows: Any, label: str, **look: Any) -> None:
    """Mean of rows (seeds, points) with one standard deviation either way."""
    mean, spread = rows
    axes.plot(x, mean, label=label, **{"linewidth": 1.4, **look})
    axes.fill_between(x, mean - spread, mean + spread, color=look["color"], alpha=0.18, linewidth=0)


def legend_below(figure: Figure, found: Sequence[Axes]) -> None:
    """One legend for all panels, each label once."""
    handles: dict[str, Any] = {}
    for axes in found:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(list(handles.values()), list(handles), **LEGEND, loc="outside lower center", ncols=3)


def spread_of(count: int) -> Any:
    """Shifts in powers of two that keep so many bars at one batch apart."""
    return 0.09 * (np.arange(count) - (count - 1) / 2)


def files(figure: Figure) -> dict[str, bytes]:
    """The figure as `png` and `svg`; the same figure gives the same picture on any day, in the SVG but for
    the names of its parts."""
    found = {}
    for form in ("png", "svg"):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=form, dpi=DOTS_PER_INCH, metadata={"Date": None} if form == "svg" else None)
        figure.set_layout_engine("none")  # the first has placed everything, for both
        found[form] = buffer.getvalue()
    return found
