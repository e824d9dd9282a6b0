"""The tuning report's figures as PNG and SVG."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from service.scaling.drawing import COLOURS, files, panels
from service.tuning.report import Combination, TuningReport, told

MOST_DRAWN = 400
"""Combinations in the picture, the best ones."""
MOST_TICKS = 8
BELOW = -0.08
"""Where a line passes an axis that its combination does not have."""
DECADES = 10
"""An axis whose numbers span so many times their least is drawn in logarithms."""


def tuning_figures(report: TuningReport) -> Iterator[tuple[str, bytes]]:
    """Names and files, `parallel.png` and `parallel.svg` and so on. What there is nothing to draw of is left out."""
    for name, figure in (("parallel", _parallel(report)), ("importance", _importance(report))):
        if figure is not None:
            for form, data in files(figure).items():
                yield f"{name}.{form}", data


class Scale:
    """Where the values of one axis stand, from 0 to 1: numbers by their size, in logarithms where they span decades,
    and others one beside the other."""

    def __init__(self, values: Sequence[Any]) -> None:
        numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
        self.is_numeric = len(numbers) == len(values) and len(set(numbers)) > 1
        self.words = sorted({told(value) for value in values})
        self.numbers = sorted(set(numbers)) if self.is_numeric else []
        self.is_log = self.is_numeric and self.numbers[0] > 0 and self.numbers[-1] >= DECADES * self.numbers[0]

    def place(self, value: Any) -> float:
        """Of a value that it was made of."""
        if not self.is_numeric:
            return (self.words.index(told(value)) + 0.5) / len(self.words)
        low, high, at = (self._size(one) for one in (self.numbers[0], self.numbers[-1], value))
        return (at - low) / (high - low)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Places and words, a few."""
        if not self.is_numeric:
            return [((i + 0.5) / len(self.words), word) for i, word in enumerate(self.words)][:MOST_TICKS]
        if len(self.numbers) <= MOST_TICKS:
            return [(self.place(number), told(number)) for number in self.numbers]
        low, high = self._size(self.numbers[0]), self._size(self.numbers[-1])
        sizes = [low + (high - low) * i / 4 for i in range(5)]
        return [(i / 4, f"{10**size if self.is_log else size:.3g}") for i, size in enumerate(sizes)]

    def _size(self, number: float) -> float:
        return math.log10(number) if self.is_log else float(number)


def _parallel(report: TuningReport) -> Figure | None:
    """A line a combination through its values on each axis to what it came to (Inselberg 1985); the best are drawn
    last, and dark."""
    drawn = [one for one in report.combinations if one.mean is not None][:MOST_DRAWN]
    axes_names = [*dict.fromkeys(axis for one in drawn for axis in one.settings)]
    if len(drawn) < 2 or not axes_names:
        return None
    metric = report.question.metric
    scale_of = {axis: Scale([one.settings[axis] for one in drawn if axis in one.settings]) for axis in axes_names}
    costs = [one.mean or 0.0 for one in drawn]
    figure, (axes,) = panels(1, max(7.0, 1.7 * (len(axes_names) + 1)), 4.5)
    low, high = min(costs), max(costs)
    place, colour = Normalize(low, high if high > low else low + 1), colormaps["viridis"]
    for one in reversed(drawn):
        _line(axes, one, scale_of, low, high, colour(place(one.mean or 0.0)))
    axes.grid(visible=False)
    axes.set_xticks(range(len(axes_names) + 1), [_plain(name) for name in axes_names] + [_plain(metric.name)])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    for x, axis in enumerate(axes_names):
        lacking = [(BELOW, "-")] if any(axis not in one.settings for one in drawn) else []
        _upright(axes, x, [*scale_of[axis].ticks, *lacking])
    _upright(axes, len(axes_names), [(i / 4, metric.told(low + (high - low) * i / 4)) for i in range(5)])
    axes.set_xlim(-0.2, len(axes_names) + 0.6)
    axes.set_ylim(BELOW - 0.03, 1.03)
    return figure


def _line(axes: Axes, one: Combination, scale_of: dict[str, Scale], low: float, high: float, colour: Any) -> None:
    """Below an axis that the combination does not have."""
    places = [s.place(one.settings[axis]) if axis in one.settings else BELOW for axis, s in scale_of.items()]
    end = ((one.mean or 0.0) - low) / (high - low) if high > low else 0.5
    axes.plot(range(len(places) + 1), [*places, end], color=colour, linewidth=1.2, alpha=0.8)


def _upright(axes: Axes, x: float, ticks: Sequence[tuple[float, str]]) -> None:
    axes.plot([x, x], [0, 1], color="0.3", linewidth=1, zorder=5)
    for y, word in ticks:
        ground = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.5}
        at = {"xytext": (3, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(_plain(word), (x, y), **at, fontsize=7, bbox=ground, zorder=6)  # type: ignore[arg-type]


def _importance(report: TuningReport) -> Figure | None:
    found = report.importances[::-1]
    if len(found) < 2:
        return None
    figure, (axes,) = panels(1, 6, 0.6 + 0.4 * len(found))
    axes.barh([_plain(one.axis) for one in found], [100 * one.share for one in found], color=COLOURS["none"])
    axes.set_xlabel("share of the differences (%)")
    return figure


def _plain(text: str) -> str:
    return text.replace("$", r"\$")
