"""The name of a push, and the set of the names that were applied."""

from collections import defaultdict
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class PushIdentity:
    """A push covers the minibatches `first` to `last` (inclusive, numbered within the epoch) of one parameter group.

    Any process may push it again after any failure: a shard applies each identity once.
    """

    epoch: int
    first: int
    last: int
    group: int = 0


LONGEST_DELAY = 256
"""Fetches that may lie between the one whose parameters a gradient was computed from and the last before its push."""


class IdentitySet:
    """Which minibatches were applied, as disjoint ascending ranges an epoch and group."""

    def __init__(self) -> None:
        self.ranges: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)

    def __contains__(self, identity: PushIdentity) -> bool:
        ranges = self.ranges.get((identity.epoch, identity.group), [])
        return any(first <= identity.first and identity.last <= last for first, last in reversed(ranges))

    def add(self, identity: PushIdentity) -> None:
        """Remember it; neighbouring ranges grow together."""
        ranges = self.ranges[identity.epoch, identity.group]
        ranges.append((identity.first, identity.last))
        ranges.sort()
        merged = [ranges[0]]
        for first, last in ranges[1:]:
            if first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
            else:
                merged.append((first, last))
        ranges[:] = merged

    def discard(self, identity: PushIdentity) -> None:
        """Forget its minibatches."""
        ranges, rest = self.ranges[identity.epoch, identity.group], list[tuple[int, int]]()
        for first, last in ranges:
            outside = (first, min(last, identity.first - 1)), (max(first, identity.last + 1), last)
            rest += [(a, b) for a, b in outside if a <= b]
        ranges[:] = rest

    def minibatches(self, epoch: int, group: int = 0) -> set[int]:
        """The numbers of all minibatches of an epoch that were applied."""
        return {i for first, last in self.ranges.get((epoch, group), []) for i in range(first, last + 1)}

    def to_json(self) -> list[list[int]]:
        """Rows of epoch, group, first, last."""
        return [[e, g, first, last] for (e, g), ranges in self.ranges.items() for first, last in ranges]

    @classmethod
    def from_json(cls, rows: list[list[int]]) -> "IdentitySet":
        """What `to_json` wrote."""
        found = cls()
        for epoch, group, first, last in rows:
            found.add(PushIdentity(epoch, first, last, group))
        return found
