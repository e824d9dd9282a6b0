"""Schedules that fall smoothly to the end of the run."""

import math
from typing import ClassVar, Literal

from pydantic import Field

from trainers.optim.schedules.base import Course, Mark, RunLength, ScheduleSection, quarters

DEFAULT_TIMESCALE = 10_000
"""Updates; what `transformers` takes for `inverse_sqrt` without a warm-up."""


class CosineSchedule(ScheduleSection):
    """Half a cosine from the learning rate down to `final` times it over the run."""

    source: ClassVar[str] = "Loshchilov and Hutter 2017"

    name: Literal["cosine"] = "cosine"
    final: float = Field(default=0.0, ge=0, le=1)
    """What is left at the end, as a share of the first rate."""

    def course(self, run: RunLength) -> Course:
        final, total = self.final, run.total
        return lambda seen: final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(seen / total, 1.0)))

    def marks(self, run: RunLength) -> list[Mark]:
        return quarters(run, lambda at: f"({self.final:g} + {1 - self.final:g} (1 + cos({at:g} pi)) / 2)")


class PolynomialSchedule(ScheduleSection):
    """(1 - share of the run)^power, from the learning rate down to `final` times it."""

    source: ClassVar[str] = "You et al. 2017"

    name: Literal["polynomial"] = "polynomial"
    power: float = Field(default=2.0, gt=0, le=100)
    """1: a straight line; 2 as in You et al. 2017."""
    final: float = Field(default=0.0, ge=0, le=1)
    """What is left at the end, as a share of the first rate."""

    def course(self, run: RunLength) -> Course:
        power, final, total = self.power, self.final, run.total
        return lambda seen: final + (1 - final) * (1 - min(seen / total, 1.0)) ** power

    def marks(self, run: RunLength) -> list[Mark]:
        return quarters(run, lambda at: f"({self.final:g} + {1 - self.final:g} (1 - {at:g})^{self.power:g})")


class LinearSchedule(ScheduleSection):
    """A straight line from the learning rate at the end of the warm-up down to `final` times it at the end of the run,
    as `linear` of `transformers`."""

    source: ClassVar[str] = "Devlin et al. 2019, appendix A.2"

    name: Literal["linear"] = "linear"
    final: float = Field(default=0.0, ge=0, le=1)
    """What is left at the end, as a share of the first rate."""

    def course(self, run: RunLength) -> Course:
        begin, length, final = run.warmup, run.total - run.warmup, self.final
        return lambda seen: 1 - (1 - final) * min(max(seen - begin, 0) / length, 1.0)

    def marks(self, run: RunLength) -> list[Mark]:
        at = self.course(run)
        return quarters(run, lambda part: f"{at(part * run.total):g}")


class InverseSqrtSchedule(ScheduleSection):
    """sqrt(T / (T + updates since the warm-up)), as `inverse_sqrt` of `transformers`."""

    source: ClassVar[str] = "Vaswani et al. 2017, section 5.3"

    name: Literal["inverse_sqrt"] = "inverse_sqrt"
    timescale: int = Field(default=0, ge=0)
    """T, in updates; 0: the length of the warm-up, or 10,000 without one."""

    def course(self, run: RunLength) -> Course:
        begin, scale = run.warmup, self._timescale(run)
        return lambda seen: math.sqrt(scale / (scale + max(seen - begin, 0)))

    def marks(self, run: RunLength) -> list[Mark]:
        scale = self._timescale(run)
        return quarters(run, lambda part: f"sqrt({scale:g} / {scale + max(part * run.total - run.warmup, 0):g})")

    def _timescale(self, run: RunLength) -> float:
        """In examples."""
        return self.timescale * run.update or run.warmup or DEFAULT_TIMESCALE * run.update


class WsdSchedule(ScheduleSection):
    """Warm-up, stable, decay: the rate stays what it is until the last part of the run, and falls to `final` times it
    there."""

    source: ClassVar[str] = "Hu et al. 2024, section 4; Haegele et al. 2024, section 3"

    name: Literal["wsd"] = "wsd"
    decay: float = Field(default=0.2, gt=0, le=1)
    """How much of the run the fall takes."""
    shape: Literal["linear", "sqrt", "cosine"] = "linear"
    """With x the part of the fall that is over: 1 - x, 1 - sqrt(x), or (1 + cos(pi x)) / 2."""
    final: float = Field(default=0.0, ge=0, le=1)
    """What is left at the end, as a share of the first rate."""

    def course(self, run: RunLength) -> Course:
        begin, length, final = (1 - self.decay) * run.total, self.decay * run.total, self.final
        return lambda seen: final + (1 - final) * self._left(min(max(seen - begin, 0) / length, 1.0))

    def marks(self, run: RunLength) -> list[Mark]:
        begin, at = (1 - self.decay) * run.total, self.course(run)
        half = begin + self.decay * run.total / 2
        return [Mark("decay", begin, "1"), Mark("half of the decay", half, f"{at(half):g}")]

    def _left(self, over: float) -> float:
        """over: the part of the fall that is over."""
        if self.shape == "cosine":
            return 0.5 * (1 + math.cos(math.pi * over))
        return 1 - (over if self.shape == "linear" else math.sqrt(over))
