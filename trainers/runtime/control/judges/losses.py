"""Whether the loss jumps and stays, or never gets better: seen from the losses of steps, while the run trains.

Losses are compared in windows of several bins, each the mean of equally many examples, by their medians: one bad
minibatch, a warm-up or a restart of the learning rate is no jump.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from trainers.runtime.control.judges.divergence import PATIENCE

BINS = 8
"""In a window, which is as long as a stretch of `DivergenceWatch`: an epoch, or a sixth of a shorter run."""
LOST = 0.5
"""Of what the loss had come down; a run that has lost so much of it for a whole window has jumped."""
BACK = 0.25
"""Of that; one that is down to there again has recovered."""
START = 2.0
"""Times the median of the first window: the highest loss that counts as the start. A model that is initialised badly
has a far higher one at its first step only."""
NOISE = 3.0
"""Times the spread of the bins in the best window: to have come down by less may be chance."""
CLEAR = 0.05
"""Of the loss of the first step, which is of one minibatch; to have come down by less is not getting better."""
SLIGHT = 0.01
"""Likewise, of the median of the first window."""
SLIGHT_OF_SPREAD = 0.1
"""Likewise, of the spread of the bins in the best window."""


@dataclass
class LossWatch:
    """Feed it the loss of each report of the workers."""

    stretch: float
    """The length of a window in examples."""
    knows_chance: bool = False
    """Whether the loss of guessing is known: then `DivergenceWatch` says whether the run learns anything."""
    examples: int = 0
    first: float | None = None
    """The loss of the first step."""
    bins: deque[float] = field(default_factory=lambda: deque(maxlen=2 * BINS))
    num_bins: int = 0
    early: float = math.nan
    """The median of the first window, once it is over."""
    start: float = math.nan
    """From which the loss has come down, once there is a window."""
    best: float = math.inf
    """The lowest median of a window that is over."""
    spread: float = 0.0
    """In that window."""
    told: bool = False
    """Whether the jump under way was told."""
    told_standstill: bool = False
    sums: list[tuple[float, int]] = field(default_factory=list)
    """Loss and examples of each report of the bin under way."""

    def restore(self, reports: Iterable[tuple[int, float]]) -> None:
        """Take over what an earlier coordinator was told, and has told."""
        for examples, loss in reports:
            self.add(examples, loss)

    def add(self, examples: int, loss: float) -> str | None:
        """What is wrong from this report on, with `examples` trained so far; None where nothing is, or it was told."""
        if examples <= self.examples or not math.isfinite(loss):  # again, after the run went back to a checkpoint
            return None
        self.first = loss if self.first is None else self.first
        self.sums.append((loss, examples - self.examples))
        width = self.stretch / BINS
        is_over = examples // width > self.examples // width
        self.examples = examples
        return self._close_bin() if is_over else None

    def _close_bin(self) -> str | None:
        weight = sum(count for _, count in self.sums)
        self.bins.append(sum(loss * count for loss, count in self.sums) / weight)
        self.sums = []
        self.num_bins += 1
        if self.num_bins == BINS:
            assert self.first is not None
            middle = self.early = median(self.bins)
            self.start = min(self.first, START * middle) if middle > 0 else self.first
        if self.num_bins < 2 * BINS:
            return None
        early, late = list(self.bins)[:BINS], list(self.bins)[BINS:]
        if median(early) < self.best:
            self.best, self.spread = median(early), max(early) - min(early)
        return self._jump(late) or self._standstill(late)

    def _jump(self, late: list[float]) -> str | None:
        gained = self.start - self.best
        if self.told and median(late) < self.best + BACK * gained:
            self.told = False
        if self.told or gained <= NOISE * self.spread or min(late) <= self.best + LOST * gained:
            return None
        self.told = True
        return f"the loss has jumped to {median(late):.3g} and stays there, after {self.best:.3g}"

    def _standstill(self, late: list[float]) -> str | None:
        if self.knows_chance or self.told_standstill or self.num_bins < PATIENCE * BINS or self.num_bins % BINS:
            return None
        assert self.first is not None
        lowest = min(self.best, median(late))
        fell_at_once = lowest < self.first - max(CLEAR * abs(self.first), self.spread)
        if fell_at_once or lowest < self.early - max(SLIGHT * abs(self.early), SLIGHT_OF_SPREAD * self.spread):
            return None
        self.told_standstill = True
        return f"the loss is {median(late):.3g} and was {self.first:.3g} at the first step: it has not come down"
