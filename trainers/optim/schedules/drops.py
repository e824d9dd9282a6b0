"""Schedules that stay where they are, or fall in steps."""

from typing import ClassVar, Literal

from pydantic import Field

from trainers.optim.schedules.base import Course, Mark, RunLength, ScheduleSection


class ConstantSchedule(ScheduleSection):
    """The learning rate stays what it is."""

    name: Literal["constant"] = "constant"

    def course(self, run: RunLength) -> Course:
        return lambda seen: 1.0


class StepSchedule(ScheduleSection):
    """The learning rate is multiplied by `factor` at the end of each of the given epochs (paper 4, section 5.1)."""

    source: ClassVar[str] = "paper 4, section 5.1"

    name: Literal["step"] = "step"
    epochs: tuple[float, ...] = (30, 60, 80)
    """When, in epochs from the start."""
    factor: float = Field(default=0.1, gt=0, le=1)
    """By how much."""

    def course(self, run: RunLength) -> Course:
        return _dropping([epoch * run.epoch for epoch in self.epochs], self.factor)

    def marks(self, run: RunLength) -> list[Mark]:
        return _marks([epoch * run.epoch for epoch in self.epochs], f"{self.factor:g}")


class KrizhevskySchedule(ScheduleSection):
    """The learning rate is multiplied by 250^(-1/3) at 25, 50 and 75 % of the run (paper 1, section 5)."""

    source: ClassVar[str] = "paper 1, section 5"

    name: Literal["krizhevsky"] = "krizhevsky"

    def course(self, run: RunLength) -> Course:
        return _dropping(self._edges(run), 250 ** (-1 / 3))

    def marks(self, run: RunLength) -> list[Mark]:
        return _marks(self._edges(run), "250^(-1/3)")

    @staticmethod
    def _edges(run: RunLength) -> list[float]:
        return [part * run.epochs * run.epoch for part in (0.25, 0.5, 0.75)]


def _dropping(edges: list[float], factor: float) -> Course:
    return lambda seen: factor ** sum(seen >= edge for edge in edges)


def _marks(edges: list[float], factor: str) -> list[Mark]:
    return [Mark(f"drop {count}", edge, f"({factor})^{count:g}") for count, edge in enumerate(sorted(edges), 1)]
