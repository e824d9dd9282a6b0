"""Medians, spreads, ratios paired round by round, and whether a target was met."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Spread:
    """Repeats of one figure."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("a spread needs at least one value")

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        """First and third quartile, linear between the values; their distance is the interquartile range."""
        if len(self.values) == 1:
            return self.values[0], self.values[0]
        first, _, third = statistics.quantiles(self.values, n=4, method="inclusive")
        return first, third

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)


def paired(ours: Sequence[float], base: Sequence[float]) -> Spread:
    """Ratio of two contenders round by round, so that a slow minute of the machine counts for both."""
    return Spread(tuple(a / b for a, b in zip(ours, base, strict=True)))


@dataclass(frozen=True)
class Target:
    """What a figure has to reach."""

    name: str
    bound: float
    kind: Literal["at least", "at most"] = "at least"
    in_reach: float | None = None
    """What the contract calls within reach, beyond the bound."""

    def verdict(self, spread: Spread | None) -> str:
        """Judged by the median: `met`, `met, and what is in reach too`, `missed by x %`, `not measured`."""
        if spread is None:
            return "not measured"
        if not self._holds(spread.median, self.bound):
            return f"**missed** by {abs(spread.median / self.bound - 1):.1%}" if self.bound else "**missed**"
        beyond = self.in_reach is not None and self._holds(spread.median, self.in_reach)
        return "met, and what is in reach too" if beyond else "met"

    def _holds(self, value: float, bound: float) -> bool:
        return value >= bound if self.kind == "at least" else value <= bound
