"""What metrics are made of: sums that add up over minibatches and processes, and what is made of them in the end."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Self


@dataclass(frozen=True)
class Measure(ABC):
    """One metric of one minibatch. Its fields are sums."""

    def __add__(self, other: Self) -> Self:
        """The same metric of both minibatches together."""
        return replace(self, **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    @property
    @abstractmethod
    def value(self) -> float:
        """The metric."""


@dataclass(frozen=True)
class Sum(Measure):
    """A count or a sum."""

    total: float

    @property
    def value(self) -> float:
        return self.total


@dataclass(frozen=True)
class Mean(Measure):
    """A mean over units, of which there were so many."""

    total: float
    weight: float

    @property
    def value(self) -> float:
        return self.total / self.weight if self.weight else math.nan


@dataclass(frozen=True)
class Perplexity(Mean):
    """e to the mean of a cross entropy in nats."""

    @property
    def value(self) -> float:
        return math.exp(min(super().value, 700.0))  # beyond it a float overflows


@dataclass(frozen=True)
class Bits(Mean):
    """The mean of a cross entropy in nats, told in bits."""

    @property
    def value(self) -> float:
        return super().value / math.log(2)


@dataclass(frozen=True)
class MeanIoU(Measure):
    """The mean over classes of how many pixels are rightly of the class, divided by how many are or were taken to be of
    it. A class that is nowhere is left out."""

    overlaps: tuple[float, ...]
    """Pixels of each class that were found."""
    unions: tuple[float, ...]

    def __add__(self, other: Self) -> Self:
        both = zip((self.overlaps, self.unions), (other.overlaps, other.unions), strict=True)
        return type(self)(*(tuple(map(sum, zip(one, more, strict=True))) for one, more in both))

    @property
    def value(self) -> float:
        found = [overlap / union for overlap, union in zip(self.overlaps, self.unions, strict=True) if union]
        return sum(found) / len(found) if found else math.nan


@dataclass(frozen=True)
class Determination(Measure):
    """R2: the share of the targets' variance that the outputs explain; 1 is all of it, 0 is what their mean does."""

    squared_errors: float
    targets: float
    squared_targets: float
    count: float

    @property
    def value(self) -> float:
        variance = self.squared_targets - self.targets**2 / self.count if self.count else 0.0
        return 1 - self.squared_errors / variance if variance else math.nan
