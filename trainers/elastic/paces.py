"""How fast workers compute, and how many steps of its own that gives each."""

import math
from collections.abc import Iterable


class Paces:
    """Dynamic local updates: a worker makes steps before a push in proportion to its speed, H if it is the fastest.

    Source: Liu et al. 2024, section 5: floor(v(w) / max v H), with the speed v in steps a second.
    """

    def __init__(self, steps: int) -> None:
        """steps: H."""
        self.steps = steps
        self.step_s: dict[int, float] = {}  # worker -> seconds of a step; half of it is what was measured last

    def add(self, worker: int, steps: int, seconds: float) -> None:
        """A worker has made so many steps, and computed so long."""
        if steps and seconds > 0:
            new = seconds / steps
            self.step_s[worker] = (self.step_s.get(worker, new) + new) / 2

    def steps_of(self, worker: int, others: Iterable[int]) -> int:
        """How many a worker makes beside these; H until its speed is known."""
        own = self.step_s.get(worker)
        if own is None:
            return self.steps
        fastest = min([own, *(self.step_s[other] for other in others if other in self.step_s)])
        return max(1, math.floor(fastest / own * self.steps))
