"""What a seed shows that was stopped before its end, such as one whose curve had left the baseline's.

Its error cannot be set beside final ones: it would have fallen further, as the baseline's did. What can be compared is
how far it was from the baseline at the same epochs; where a batch does worse, the gap is there all along (paper 4,
section 5.3).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from service.scaling.evidence import Point
from service.scaling.loss_curves import last_epoch
from service.scaling.statistics import Seeds

LAST_EPOCHS = 5  # paper 4, section 5.1
LEAST = 0.01
"""What a seed counts at least that has been evaluated."""


@dataclass(frozen=True)
class Baseline:
    """The seeds at the base batch and the base rate."""

    seeds: Seeds = field(default_factory=Seeds)
    curves: tuple[Sequence[Point], ...] = ()
    """Of those that finished."""
    epochs: float = 0.0
    """Of a whole run."""

    def weighed(self, points: Sequence[Point], error: float | None) -> tuple[float, float] | None:
        """The error that a seed is taken to come to, and what that counts: the share of the epochs it has trained.

        points: Until it was stopped. error: The last it had, which is all there is where the baseline has no curves.
        None where it was not evaluated.
        """
        if error is None:
            return None
        last = last_epoch(points)
        weight = min(1.0, max(LEAST, last / self.epochs)) if self.epochs > 0 else 1.0
        gaps = [gap for point in points if point.epoch > last - LAST_EPOCHS and (gap := self._gap(point)) is not None]
        if gaps and self.seeds.errors:
            error = self.seeds.mean + float(np.median(gaps))
        return error, weight

    def _gap(self, point: Point) -> float | None:
        """The error of an evaluation above the baseline's mean at the same epoch."""
        if point.test_error is None:
            return None
        there = [found for curve in self.curves if (found := _at(curve, point.epoch)) is not None]
        return point.test_error - sum(sorted(there)) / len(there) if there else None


def _at(curve: Sequence[Point], epoch: float) -> float | None:
    """The error of a curve at an epoch, between its evaluations by interpolation."""
    pairs = sorted((point.epoch, point.test_error) for point in curve if point.test_error is not None)
    if not pairs or epoch > pairs[-1][0]:
        return None
    return float(np.interp(epoch, [at for at, _ in pairs], [error for _, error in pairs]))
