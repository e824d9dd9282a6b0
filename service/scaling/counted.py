"""What a trial's workers counted, folded from the `step` events of its log."""

import statistics
from typing import Literal

from trainers import Event

Quantity = Literal[
    "bytes sent an example",
    "bytes to and from shards an example",
    "examples a second",
    "staleness",
    "share of the fullest shard",
]
"""What runs can be compared by, beside the metric of their task."""
FULLEST: Quantity = "share of the fullest shard"
"""The one that no run counts: a model's layout tells it."""
STEADY = 0.2, 0.9
"""Of the examples: before, workers that began together come in bursts; behind, some have nothing left to train."""


class Counted:
    """Feed it the events of a log in order, which may contain several starts."""

    def __init__(self) -> None:
        self.examples = 0  # trained, those trained again after a restart too
        self.last = 0
        self.sent = 0
        self.shards = 0
        self.at: list[tuple[float, int]] = []  # time, examples
        self.staleness: dict[int, int] = {}

    def add(self, step: Event) -> None:
        """Take in one more `step` event."""
        told = step.data
        self.examples += max(0, told.get("examples", 0) - self.last)
        self.last = told.get("examples", 0)
        self.sent += told.get("sent_bytes", 0)
        self.shards += told.get("pushed_bytes", 0) + told.get("fetched_bytes", 0)
        self.at.append((step.time, self.examples))
        self.staleness = {int(late): count for late, count in (told.get("staleness") or self.staleness).items()}

    @property
    def quantities(self) -> dict[Quantity, float]:
        """Of all workers together, as far as there is something to tell."""
        if not self.examples:
            return {}
        found: dict[Quantity, float] = {
            "bytes sent an example": self.sent / self.examples,
            "bytes to and from shards an example": self.shards / self.examples,
        }
        if (rate := self._rate()) is not None:
            found["examples a second"] = rate
        if pushes := sum(self.staleness.values()):
            found["staleness"] = sum(late * count for late, count in self.staleness.items()) / pushes
        return found

    def _rate(self) -> float | None:
        """The slope of the line through the examples of the steady part."""
        begun, ended = (share * self.examples for share in STEADY)
        steady = [(time, examples) for time, examples in self.at if begun <= examples <= ended]
        if len({time for time, _ in steady}) < 2:
            return None
        return statistics.linear_regression(*zip(*steady, strict=True)).slope
