"""Backup workers on one shard: of the K + b gradients of a step the first K count (Chen et al. 2016)."""

from typing import Generic, TypeVar

from trainers.store.identity import PushIdentity

P = TypeVar("P")


class Places(Generic[P]):
    """The K places of the step under way.

    A worker whose gradient is ready asks the first shard for a place; who gets one pushes to all shards, the others
    drop what they have and tell the other shards that they pass. So every shard makes a step of the same gradients,
    although each of them closes it by itself: when K pushes are there, or one of every worker that has neither left
    nor passed. A worker leaves when all its pushes are applied, or dies.
    """

    def __init__(self, quorum: int, backup: int) -> None:
        self.quorum = quorum  # K
        self.workers = quorum + backup  # so many are counted on before they have joined
        self.known: set[int] = set()  # who ever joined
        self.live: set[int] = set()
        self.pushed: set[int] = set()  # to the step under way, and may have died since
        self.given_at = 0  # version at which the places in `given` were given
        self.given: set[int] = set()
        self.passed: set[int] = set()  # who got none at that version
        self.pushes: dict[PushIdentity, list[P]] = {}  # of the step under way

    def join(self, worker: int) -> None:
        """Count on a worker."""
        self.known.add(worker)
        self.live.add(worker)

    def leave(self, worker: int) -> None:
        """Count on a worker no longer."""
        self.known.add(worker)
        self.live.discard(worker)

    def claim(self, worker: int, clock: int, version: int) -> bool:
        """Whether a gradient computed at version `clock` gets a place in the step after `version`. Who asks again gets
        the same answer."""
        self._turn_to(version)
        if clock == version and worker in self.given:
            return True
        if clock != version or worker in self.passed or len(self.given) == self.quorum:
            self.pass_by(worker, clock, version)
            return False
        self.given.add(worker)
        return True

    def pass_by(self, worker: int, clock: int, version: int) -> None:
        """A worker got no place for what it computed at version `clock`."""
        self._turn_to(version)
        if clock == version:
            self.passed.add(worker)

    def given_for(self, version: int) -> set[int]:
        """Who has a place in the step after `version`."""
        return self.given if self.given_at == version else set()

    def restore(self, live: set[int], version: int, given: set[int]) -> None:
        """Go on with these workers and places, where another process ended."""
        self.workers, self.live = 0, live
        self.given_at, self.given, self.passed = version, given, set()

    def push(self, worker: int, identity: PushIdentity, push: P) -> None:
        """A gradient that has a place; one that is pushed twice takes one."""
        if worker not in self.known:
            self.join(worker)
        self.pushed.add(worker)
        self.pushes.setdefault(identity, []).append(push)

    def complete(self, version: int) -> list[P]:
        """The pushes of the step after `version` once it has all; none before."""
        self._turn_to(version)
        able = max(0, self.workers - len(self.known)) + len((self.live | self.pushed) - self.passed)
        if not self.pushes or len(self.pushes) < min(self.quorum, able):
            return []
        pushes, self.pushes, self.pushed = self.pushes, {}, set()
        return [push for same in pushes.values() for push in same]

    def _turn_to(self, version: int) -> None:
        if self.given_at != version:
            self.given_at, self.given, self.passed = version, set(), set()
