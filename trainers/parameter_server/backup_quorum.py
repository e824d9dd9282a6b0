"""Backup workers on one shard: of the K + b gradients of a step the first K count (Chen et al. 2016)."""

from typing import Generic, TypeVar

from trainers.parameter_server.push_identity import PushIdentity

P = TypeVar("P")


class BackupQuorum(Generic[P]):
    """Admits K gradients to the step under way.

    A worker whose gradient is ready asks the first shard to admit it. If it is admitted, the worker pushes it to all
    shards; otherwise the worker drops it and tells the other shards that it passes. So all shards make a step of the
    same gradients, although each of them closes the step by itself: when K pushes have arrived, or one from every
    worker that has neither left nor passed. A worker leaves when all its pushes are applied, or when it dies.
    """

    def __init__(self, quorum: int, backup: int) -> None:
        self.quorum = quorum  # K
        self.workers = quorum + backup  # how many are expected, joined or not
        self.known: set[int] = set()  # all that ever joined
        self.live: set[int] = set()
        self.pushed: set[int] = set()  # to the step under way, and may have died since
        self.admitted_at = 0  # the version after which comes the step that `admitted` belongs to
        self.admitted: set[int] = set()
        self.passed: set[int] = set()  # workers that were not admitted to that step
        self.pushes: dict[PushIdentity, list[P]] = {}  # of the step under way

    def join(self, worker: int) -> None:
        """A worker takes part from now on."""
        self.known.add(worker)
        self.live.add(worker)

    def leave(self, worker: int) -> None:
        """A worker takes part no longer."""
        self.known.add(worker)
        self.live.discard(worker)

    def claim(self, worker: int, clock: int, version: int) -> bool:
        """Whether a gradient computed at version `clock` is admitted to the step after `version`. A worker that asks
        again gets the same answer."""
        self._turn_to(version)
        if clock == version and worker in self.admitted:
            return True
        if clock != version or worker in self.passed or len(self.admitted) == self.quorum:
            self.pass_by(worker, clock, version)
            return False
        self.admitted.add(worker)
        return True

    def pass_by(self, worker: int, clock: int, version: int) -> None:
        """A worker was not admitted with the gradient that it computed at version `clock`."""
        self._turn_to(version)
        if clock == version:
            self.passed.add(worker)

    def admitted_to(self, version: int) -> set[int]:
        """The workers that are admitted to the step after `version`."""
        return self.admitted if self.admitted_at == version else set()

    def restore(self, live: set[int], version: int, admitted: set[int]) -> None:
        """Go on with these workers, of which some are admitted already, where another process ended."""
        self.workers, self.live = 0, live
        self.admitted_at, self.admitted, self.passed = version, admitted, set()

    def push(self, worker: int, identity: PushIdentity, push: P) -> None:
        """A gradient that was admitted has arrived; pushed twice it counts once."""
        if worker not in self.known:
            self.join(worker)
        self.pushed.add(worker)
        self.pushes.setdefault(identity, []).append(push)

    def complete(self, version: int) -> list[P]:
        """The pushes of the step after `version` once all have arrived; none before."""
        self._turn_to(version)
        able = max(0, self.workers - len(self.known)) + len((self.live | self.pushed) - self.passed)
        if not self.pushes or len(self.pushes) < min(self.quorum, able):
            return []
        pushes, self.pushes, self.pushed = self.pushes, {}, set()
        return [push for same in pushes.values() for push in same]

    def _turn_to(self, version: int) -> None:
        if self.admitted_at != version:
            self.admitted_at, self.admitted, self.passed = version, set(), set()
