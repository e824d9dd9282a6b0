"""A step, cut into its parts; and what waiting for the slowest of many costs."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from trainers.cost.schedules.fleet import Floats, Ints


@dataclass(frozen=True)
class Exchange:
    """One kind of message of a step; (C,) each."""

    name: str
    total_s: Floats
    hidden_s: Floats
    """Of that, what passes while the worker computes."""
    sent_bytes: Floats
    """By the worker that sends most, a step."""

    @property
    def seen_s(self) -> Floats:
        """What the worker waits for it."""
        return self.total_s - self.hidden_s


@dataclass(frozen=True)
class Step:
    """The time between two steps of a worker; (C,) each."""

    examples: Floats
    """That all workers train in it together."""
    computing_s: Floats
    data_s: Floats
    waiting_s: Floats
    """For slower workers, or in front of a shard that serves others."""
    exchanges: tuple[Exchange, ...]

    @property
    def seconds(self) -> Floats:
        """All of it."""
        return self.computing_s + self.data_s + self.waiting_s + total(e.seen_s for e in self.exchanges)

    @property
    def rate(self) -> Floats:
        """Examples a second."""
        return self.examples / self.seconds


def total(parts: Iterable[Floats]) -> Floats:
    """The sum; 0 of nothing."""
    found: Floats = sum(parts, np.zeros(1))
    return found


def missed_s(moving_s: Floats, whole_s: Floats, hidden_s: Floats) -> Floats:
    """What computing misses for the work that an exchange makes for processors that are busy; (C,).

    Args:
        moving_s: All of this work, at both ends, spread over the whole exchange.
        whole_s: How long that lasts.
        hidden_s: Of it, while the worker computes. While it stands still its own core is free for this work.
    """
    shared = moving_s * hidden_s / np.where(whole_s > 0, whole_s, 1.0)
    found: Floats = np.maximum(shared, np.maximum(moving_s - (whole_s - hidden_s), 0.0) * (moving_s > whole_s))
    return found


def slowest(workers: Ints, needed: Ints | None = None) -> Floats:
    """By how many standard deviations the last of `needed` workers is later than their mean, where all take normally
    distributed times; needed: by default all (Blom 1958)."""
    needed = workers if needed is None else needed
    found: Floats = np.where(workers > 1, ndtri((needed - 0.375) / (workers + 0.25)), 0.0)
    return np.maximum(found, 0.0)
