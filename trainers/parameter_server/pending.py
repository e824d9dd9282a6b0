"""What a worker has asked of the shards and has no answer to, and what became of its pushes."""

import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from torch import Tensor

from trainers.parameter_server.protocol import Push
from trainers.parameter_server.wire_format import COMPRESSED_PUSH, PUSHES, bits_of, request


@dataclass
class PendingFetch:
    """A fetch that not all shards have answered."""

    serial: int
    min_clock: int
    missing: set[int]
    """Shards that have not answered."""
    answers: list[tuple[int, int]] = field(default_factory=list)
    """Of the others: examples and updates so far."""
    asked_s: float = field(default_factory=time.perf_counter)
    latency_s: float = 0.0
    """From asking to the last answer."""

    def answered(self, shard: int, examples: int, version: int) -> None:
        """A shard has answered."""
        self.missing.discard(shard)
        self.answers.append((examples, version))
        if not self.missing:
            self.latency_s = time.perf_counter() - self.asked_s


@dataclass
class PendingPush:
    """A group's part of a slot, on its way to the shards that hold a part of the group."""

    push: Push
    slot: int
    bases: dict[int, int]
    """Shard -> its version that the gradient was computed from."""
    missing: set[int]
    """Shards that have not applied it."""
    compressed: dict[int, Tensor]
    """Shard -> what travels in place of the slot's part, where the push is compressed."""
    stale: int = 0
    """On the first of them."""
    handed_over_s: float = field(default_factory=time.perf_counter)

    @property
    def age_s(self) -> float:
        """Since it was handed over."""
        return time.perf_counter() - self.handed_over_s

    def message(self, serial: int, shard: int) -> bytes:
        """The message to one shard."""
        push, i = self.push, self.push.identity
        which = serial, self.slot, i.epoch, i.first, i.last, i.group
        of_wire = next(kind for kind, wire in PUSHES.items() if wire == push.wire)
        kind = COMPRESSED_PUSH if self.compressed else of_wire
        return request(
            kind, *which, push.clock, push.examples, push.minibatches, bits_of(push.divisor), self.bases[shard]
        )


class Acknowledgements:
    """Counts staleness, and tells which pushes are applied in all groups of parameters."""

    def __init__(self, num_groups: int) -> None:
        self.by_group: list[Counter[int]] = [Counter() for _ in range(num_groups)]
        self.staleness: Counter[int] = Counter()  # of pushes that all groups have applied, each by its stalest group
        self.open: dict[tuple[int, int, int], dict[int, int]] = defaultdict(dict)  # minibatches -> group -> staleness
        self.done: list[Push] = []

    def add(self, push: Push, stale: int) -> None:
        """All shards that hold a part of the push's group have applied it."""
        i = push.identity
        self.by_group[i.group][stale] += 1
        found = self.open[i.epoch, i.first, i.last]
        found[i.group] = stale
        if len(found) == len(self.by_group):
            del self.open[i.epoch, i.first, i.last]
            self.staleness[max(found.values())] += 1
            self.done.append(push)

    def taken(self) -> list[Push]:
        """Pushes that were applied in all groups since the last call."""
        done, self.done = self.done, []
        return done
