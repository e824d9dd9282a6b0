"""Schedules that rise again."""

import math
from typing import ClassVar, Literal

from pydantic import Field

from trainers.optim.schedules.base import Course, Mark, RunLength, ScheduleSection

MOST_CYCLES = 8
"""That a recipe lists."""


class OneCycleSchedule(ScheduleSection):
    """Up to the learning rate and down far below where it began, as torch's OneCycleLR with its default options, and
    without its cycle of the momentum."""

    source: ClassVar[str] = "Smith and Topin 2018"
    warms_up: ClassVar[bool] = True

    name: Literal["one_cycle"] = "one_cycle"
    rise: float = Field(default=0.3, gt=0, lt=1)
    """How much of the run the rise takes (`pct_start`)."""
    start_divisor: float = Field(default=25.0, ge=1)
    """The first rate is the learning rate divided by this (`div_factor`)."""
    final_divisor: float = Field(default=1e4, ge=1)
    """The last rate is the first one divided by this (`final_div_factor`)."""
    shape: Literal["cosine", "linear"] = "cosine"
    """Of both ways (`anneal_strategy`)."""

    def course(self, run: RunLength) -> Course:
        top, total = self.rise * run.total, run.total
        first, last = 1 / self.start_divisor, 1 / (self.start_divisor * self.final_divisor)

        def share(seen: float) -> float:
            if seen < top:
                return self._between(first, 1.0, seen / top)
            return self._between(1.0, last, min((seen - top) / (total - top), 1.0))

        return share

    def marks(self, run: RunLength) -> list[Mark]:
        half, at = (1 + self.rise) / 2 * run.total, self.course(run)
        return [Mark("top", self.rise * run.total, "1"), Mark("half of the fall", half, f"{at(half):g}")]

    def _between(self, a: float, b: float, x: float) -> float:
        return a + (b - a) * (x if self.shape == "linear" else 0.5 * (1 - math.cos(math.pi * x)))


class RestartsSchedule(ScheduleSection):
    """Half a cosine again and again, each from the whole learning rate, as torch's CosineAnnealingWarmRestarts."""

    source: ClassVar[str] = "Loshchilov and Hutter 2017, section 3"

    name: Literal["restarts"] = "restarts"
    first: float = Field(default=10.0, gt=0, le=1_000_000)
    """Epochs of the first cycle (`T_0`)."""
    factor: float = Field(default=1.0, ge=1, le=100)
    """How much longer each cycle is than the one before it (`T_mult`)."""
    final: float = Field(default=0.0, ge=0, le=1)
    """What is left at the end of a cycle, as a share of the first rate."""

    def course(self, run: RunLength) -> Course:
        first, factor, final = self.first * run.epoch, self.factor, self.final

        def share(seen: float) -> float:
            x = seen / first  # in lengths of the first cycle
            if factor == 1:
                within = x % 1
            else:  # cycle c begins at (factor^c - 1) / (factor - 1)
                cycle = math.floor(math.log(x * (factor - 1) + 1, factor) + 1e-12)
                within = max(x - (factor**cycle - 1) / (factor - 1), 0) / factor**cycle
            return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * within))

        return share

    def marks(self, run: RunLength) -> list[Mark]:
        found: list[Mark] = []
        begin = length = self.first * run.epoch
        while begin < run.total and len(found) < MOST_CYCLES:
            found.append(Mark(f"restart {len(found) + 1}", begin, "1"))
            length *= self.factor
            begin += length
        return found
