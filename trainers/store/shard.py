"""One shard of the parameter server: its slice, the pushes that wait, and what it remembers of those it applied.

It is told of pushes and fetches by one thread and touches no machine; a transport carries them to it.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from trainers.optim.scaling import momentum_correction
from trainers.optim.update import Buffers, Contribution, SliceUpdate, Whole
from trainers.store.identity import IdentitySet, PushIdentity
from trainers.transport.canonical import Node, TreeSum, covers


@dataclass(frozen=True)
class Arrived:
    """A push that lies in a slot, (n,) float32 of this shard's slice."""

    worker: int
    identity: PushIdentity
    clock: int
    examples: int
    minibatches: int
    gradient: Tensor


@dataclass(frozen=True)
class Applied:
    """What the pusher is told: its push counts, and at which staleness it was applied (0 for a repeated one)."""

    push: Arrived
    version: int
    staleness: int


@dataclass(frozen=True)
class ShardConfig:
    """How a shard turns pushes into updates."""

    update: SliceUpdate
    learning_rate: Callable[[int], float]
    """From the examples applied so far."""
    quorum: int = 0
    """0: every push is an update of its own (Downpour). V: pushes are parts of the sum over V virtual ranks, and an
    update is made when all of them are there (synchronous)."""


class Shard:
    """Versions of a slice in a ring of buffers; readers pin the version they read."""

    def __init__(self, config: ShardConfig, ring: list[Tensor], states: list[dict[str, Tensor]]) -> None:
        self.config = config
        self.ring = ring  # each (n,); ring[current] is the newest version
        self.states = states  # two of them; states[newest_state] belongs to the newest version
        self.current = 0
        self.newest_state = 0
        self.version = 0
        self.examples = 0
        self.learning_rate = 0.0  # of the newest version's update; 0 where there was none
        self.pinned: dict[int, int] = {}  # reader -> index in the ring
        self.seen: dict[int, int] = {}  # worker -> version at its last fetch
        self.clocks: dict[int, int] = {}  # live worker -> minibatches it has pushed
        self.applied = IdentitySet()
        self.staleness: Counter[int] = Counter()
        self.ripe: list[list[Arrived]] = []  # pushes that make an update each
        self.parts: dict[tuple[int, int], dict[Node, list[Arrived]]] = defaultdict(dict)  # of a step not complete

    # -- members --------------------------------------------------------------------------------------------------

    def join(self, worker: int) -> int:
        """Count on a worker from now on. Its clock starts where the slowest one is, so that nobody waits for it to
        catch up; returns it."""
        self.clocks[worker] = min(self.clocks.values(), default=0)
        self.seen[worker] = self.version
        return self.clocks[worker]

    def leave(self, worker: int) -> None:
        """Wait for this worker no longer."""
        self.clocks.pop(worker, None)
        self.pinned.pop(worker, None)

    def may_fetch(self, min_clock: int) -> bool:
        """Whether every live worker has pushed up to `min_clock`."""
        return min(self.clocks.values(), default=min_clock) >= min_clock

    # -- reading --------------------------------------------------------------------------------------------------

    def pin(self, reader: int) -> int:
        """Give the newest version to a reader, in place of the one it had. Returns its index in the ring."""
        self.pinned[reader] = self.current
        self.seen[reader] = self.version
        return self.current

    @property
    def params(self) -> Tensor:
        """(n,) the newest version of the slice."""
        return self.ring[self.current]

    @property
    def state(self) -> dict[str, Tensor]:
        """The rule's state that belongs to `params`."""
        return self.states[self.newest_state]

    # -- writing --------------------------------------------------------------------------------------------------

    def push(self, push: Arrived) -> None:
        """Take note of a push; `apply` works through those that are complete."""
        if not self.config.quorum or push.identity in self.applied:
            self.ripe.append([push])
            return
        step = push.identity.epoch, push.identity.first // self.config.quorum
        lo = push.identity.first % self.config.quorum
        parts = self.parts[step]
        parts.setdefault((lo, lo + push.identity.last - push.identity.first + 1), []).append(push)
        if covers(self.config.quorum, parts):
            self.ripe.append([push for same in self.parts.pop(step).values() for push in same])

    def apply(self, limit: int | None = None) -> list[Applied]:
        """Turn what has arrived into updates, at most `limit`, in one pass over the slice, and switch to the result.

        Returns what can be acknowledged. A push that was applied before changes nothing and is acknowledged again.
        """
        contributions: list[Contribution] = []
        answers, version = [], self.version
        while self.ripe and len(contributions) != limit:
            group = self.ripe.pop(0)
            fresh = {push.identity: push for push in reversed(group) if push.identity not in self.applied}
            answers += [Applied(push, version, 0) for push in group if fresh.get(push.identity) is not push]
            if not fresh:
                continue
            contributions.append(self._contribution(list(fresh.values())))
            for push in fresh.values():
                stale = version - self.seen.get(push.worker, version)
                self.staleness[stale] += 1
                answers.append(Applied(push, version + 1, stale))
                self.applied.add(push.identity)
            version += 1
            self.examples += sum(push.examples for push in fresh.values())
        for answer in answers:
            if answer.push.worker in self.clocks:
                self.clocks[answer.push.worker] = max(self.clocks[answer.push.worker], answer.push.clock)
        if contributions:
            self._switch(contributions, version)
        return answers

    def _contribution(self, group: list[Arrived]) -> Contribution:
        lr = self.config.learning_rate(self.examples)
        correction, self.learning_rate = momentum_correction(self.learning_rate, lr), lr
        if not self.config.quorum:
            # The worker divided each minibatch's gradient by its own examples; what was accrued is their sum.
            return Contribution(Whole(group[0].gradient), 1, lr, group[0].minibatches, correction)
        first = min(push.identity.first for push in group)
        parts = {(p.identity.first - first, p.identity.last - first + 1): p.gradient for p in group}
        examples = sum(push.examples for push in group)
        return Contribution(TreeSum(self.config.quorum, parts), examples, lr, correction=correction)

    def _switch(self, contributions: list[Contribution], version: int) -> None:
        taken = {self.current, *self.pinned.values()}
        target = next(i for i in range(len(self.ring)) if i not in taken)
        following = Buffers(self.ring[target], self.states[1 - self.newest_state])
        self.config.update.apply(contributions, Buffers(self.params, self.state), following)
        self.current, self.newest_state, self.version = target, 1 - self.newest_state, version
