"""What all schedules share: the share of the learning rate as a function of the examples seen."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from trainers.section import Section

Schedule = Callable[[int], float]
"""The learning rate of an update, from the number of examples trained before it. Examples mean the same in every
algorithm."""

Course = Callable[[float], float]
"""The share of the learning rate that is in force, from the number of examples seen."""


@dataclass(frozen=True)
class RunLength:
    """How long a run is, in examples."""

    epoch: int
    total: int
    update: int
    """Of an update."""
    warmup: float = 0.0

    @property
    def epochs(self) -> float:
        """Passes over the training set."""
        return self.total / self.epoch


class Mark(NamedTuple):
    """A point of the course that a recipe tells."""

    name: str
    examples: float
    formula: str
    """The share of the learning rate there."""


class ScheduleSection(Section, ABC):
    """One schedule: its options, its course, and what a recipe tells of it."""

    source: ClassVar[str] = ""
    """Paper and section."""
    warms_up: ClassVar[bool] = False
    """Whether its course begins with a warm-up of its own."""

    @abstractmethod
    def course(self, run: RunLength) -> Course:
        """The share of the learning rate over a run."""

    def marks(self, run: RunLength) -> list[Mark]:  # nothing happens within the run
        """Where a recipe tells the rate, in order."""
        return []


def quarters(run: RunLength, formula: Callable[[float], str]) -> list[Mark]:
    """Marks at 25, 50 and 75 % of a run; formula: of the share of the run."""
    return [Mark(f"{part:.0%}", part * run.total, formula(part)) for part in (0.25, 0.5, 0.75)]
