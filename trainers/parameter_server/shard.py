"""One shard of the parameter server: its slice, the pushes that wait, and what it remembers of those it applied.

It is told of pushes and fetches by one thread and touches no machine; a transport carries them to it.
"""

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import repeat

from torch import Tensor

from trainers.collectives.reduction_tree import Node, TreeSum, covers
from trainers.errors import RunFailed
from trainers.optim.buffers import Buffers, State
from trainers.optim.compress.compressor import Compressor
from trainers.optim.gradient import TensorGradient
from trainers.optim.scaling import momentum_correction
from trainers.optim.update import Contribution, SliceUpdate
from trainers.parameter_server.backup_quorum import BackupQuorum
from trainers.parameter_server.push_identity import IdentitySet, PushIdentity
from trainers.parameter_server.record import Journal, JournalContents, NoJournal, Record, SliceVersion, WorkerRecord


@dataclass(frozen=True)
class ReceivedPush:
    """A push that has arrived: its gradient lies in a slot, (n,) of this shard's slice, as it travelled."""

    worker: int
    identity: PushIdentity
    clock: int
    examples: int
    minibatches: int
    gradient: Tensor
    base: int = 0
    """The version that the gradient was computed from."""
    serial: int = 0
    """The number under which its worker waits for the acknowledgement."""
    weight: float | None = None
    """As in `Push`."""

    @property
    def divisor(self) -> float:
        """The weight as a number."""
        return self.examples if self.weight is None else self.weight


@dataclass(frozen=True)
class AppliedPush:
    """The acknowledgement of a push: its version, and the staleness at which it was applied (0 if repeated)."""

    push: ReceivedPush
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
    backup: int = 0
    """b > 0: pushes are single minibatches, and the first `quorum` of a step, from as many workers and b more, are
    its update."""
    harmless_staleness: int | None = None
    """h: an update's learning rate is divided by 1 + its staleness - h, where that is above 1 (Zhang et al. 2016, with
    1). None: it is not."""
    compressor: Compressor | None = None
    """Of what comes compressed."""


class Shard:
    """Versions of a slice in a ring of buffers; readers pin the version they read.

    With a journal, a new process goes on from the last complete version (`restore`): the newest row of the ring and its
    state are never written to, and what is acknowledged was committed before.
    """

    def __init__(
        self,
        config: ShardConfig,
        ring: list[Tensor],
        states: list[dict[str, Tensor]],
        journal: Journal | None = None,
    ) -> None:
        self.config = config
        self.ring = ring  # each (n,); ring[current] is the newest version
        self.states = states  # two of them; states[newest_state] belongs to the newest version
        self.journal = journal or NoJournal()
        self.current = 0
        self.newest_state = 0
        self.version = 0
        self.examples = 0
        self.learning_rate = 0.0  # of the newest version's update; 0 where there was none
        self.logged = 0  # rows of the journal's log that belong to the newest version
        self.before: SliceVersion | None = None  # the one before the newest, while it is complete
        self.latest: list[PushIdentity] = []  # identities applied since `before`
        self.pinned: dict[int, int] = {}  # reader -> index in the ring
        self.clocks: dict[int, int] = {}  # live worker -> minibatches it has pushed
        self.applied = IdentitySet()
        self.staleness: Counter[int] = Counter()  # of what this process applied
        self.ripe: deque[list[ReceivedPush]] = deque()  # pushes that make an update each
        self.taken = 0  # how many were ripe and are no more
        self.last_of: dict[int, int] = {}  # live worker -> `taken` when its last push will be
        self.parts: dict[tuple[int, int], dict[Node, list[ReceivedPush]]] = defaultdict(dict)  # of a step not complete
        self.backup_quorum: BackupQuorum[ReceivedPush] | None = (
            BackupQuorum(config.quorum, config.backup) if config.backup else None
        )

    # -- members --------------------------------------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        """Workers that may be connected at a time: the ring has a row for each, the newest, and the next."""
        return len(self.ring) - 2

    def join(self, worker: int) -> int:
        """A worker takes part from now on. Returns its clock, which starts where the slowest worker's is, so that no
        worker waits for it to catch up. A worker that takes part already keeps its own."""
        if worker not in self.clocks:
            self.clocks[worker] = min(self.clocks.values(), default=0)
            if self.backup_quorum is not None:
                self.backup_quorum.join(worker)
            self._commit()
        return self.clocks[worker]

    def set_clock(self, worker: int, clock: int) -> None:
        """Where a worker counts from: the largest clock that any shard gave it, or the clock that it had when the
        process before this one died."""
        if worker in self.clocks and clock > self.clocks[worker]:
            self.clocks[worker] = clock
            self._commit()

    def leave(self, worker: int) -> None:
        """Wait for this worker no longer."""
        known = self.clocks.pop(worker, None)
        self.last_of.pop(worker, None)
        if self.pinned.pop(worker, None) is not None:
            self.journal.unpin(worker)
        if self.backup_quorum is not None:
            self.backup_quorum.leave(worker)
            self._complete()
        if known is not None:
            self._commit()

    def claim(self, worker: int, clock: int) -> bool:
        """Whether a gradient is admitted to the step that began at version `clock`; only the first shard is asked."""
        assert self.backup_quorum is not None
        granted = self.backup_quorum.claim(worker, clock, self.version)
        if not granted:
            self._complete()  # it may have been the last that was waited for
        self._commit()
        return granted

    def pass_by(self, worker: int, clock: int) -> None:
        """A worker was not admitted to the step that was begun at version `clock`, and pushes nothing to it."""
        assert self.backup_quorum is not None
        self.backup_quorum.pass_by(worker, clock, self.version)
        self._complete()

    def may_fetch(self, min_clock: int) -> bool:
        """Whether every live worker has pushed up to `min_clock`; with backup workers, whether so many steps are
        made."""
        return self.floor >= min_clock

    @property
    def floor(self) -> float:
        """The largest `min_clock` that may be fetched now."""
        if self.backup_quorum is not None:
            return self.version
        return min(self.clocks.values(), default=math.inf)

    # -- reading --------------------------------------------------------------------------------------------------

    def pin(self, reader: int) -> int:
        """Give the newest version to a reader, in place of the one it had. Returns its index in the ring."""
        self.pinned[reader] = self.current
        self.journal.pin(reader, self.current)
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

    def push(self, push: ReceivedPush) -> None:
        """A push has arrived; `apply` makes the updates that are complete."""
        if self.backup_quorum is not None and push.clock > self.version:
            assert push.clock == self.version + 1, "a push from a step that is not under way"
            self.backup_quorum.push(push.worker, push.identity, push)
            self._complete()
            return
        assert self.backup_quorum is None or push.identity in self.applied, "a push that comes after its step"
        if not self.config.quorum or push.identity in self.applied:
            self.ripe.append([push])
            self.last_of[push.worker] = self.taken + len(self.ripe)
            return
        step = push.identity.epoch, push.identity.first // self.config.quorum
        lo = push.identity.first % self.config.quorum
        parts = self.parts[step]
        parts.setdefault((lo, lo + push.identity.last - push.identity.first + 1), []).append(push)
        if covers(self.config.quorum, parts):
            self.ripe.append([push for same in self.parts.pop(step).values() for push in same])

    def _complete(self) -> None:
        """Make the step under way ripe if all its pushes have arrived."""
        assert self.backup_quorum is not None
        if pushes := self.backup_quorum.complete(self.version):
            self.ripe.append(pushes)

    def apply(self, limit: int | None = None) -> list[AppliedPush]:
        """Turn what has arrived into updates, at most `limit`, in one pass over the slice, and switch to the result.

        Returns what can be acknowledged. A push that was applied before changes nothing and is acknowledged again.
        """
        contributions: list[Contribution] = []
        answers, version, before = [], self.version, self._newest()
        added: list[PushIdentity] = []
        while self.ripe and version - self.version != limit:
            group = self.ripe.popleft()
            self.taken += 1
            fresh = {push.identity: push for push in reversed(group) if push.identity not in self.applied}
            answers += [AppliedPush(push, version, 0) for push in group if fresh.get(push.identity) is not push]
            if not fresh and not self._is_step(group, version):
                continue
            stale = {identity: self._staleness(push, version) for identity, push in fresh.items()}
            if fresh:
                contributions.append(self._contribution(list(fresh.values()), max(stale.values())))
            for identity, push in fresh.items():
                self.staleness[stale[identity]] += 1
                answers.append(AppliedPush(push, version + 1, stale[identity]))
                self.applied.add(identity)
                added.append(identity)
            version += 1
            self.examples += sum(push.examples for push in fresh.values())
        if contributions:
            self._switch(contributions, before)
        if version > before.number:
            kept = self.journal.append(added, self.logged)
            self.before, self.latest, self.logged = replace(before, logged=kept), added, kept + len(added)
        self.version = version
        for answer in answers:
            if answer.push.worker in self.clocks:
                self.clocks[answer.push.worker] = max(self.clocks[answer.push.worker], answer.push.clock)
        if answers:
            self._commit()
        return answers

    def _is_step(self, group: list[ReceivedPush], version: int) -> bool:
        """Whether a group of pushes without any new one is a step all the same: with backup workers every shard counts
        all steps, also one whose pushes are all in the snapshot that the shard began from."""
        return self.backup_quorum is not None and group[0].clock == version + 1

    def _staleness(self, push: ReceivedPush, version: int) -> int:
        """Updates between the version that a push was computed from and `version`, onto which it comes."""
        return max(0, version - push.base)

    def _contribution(self, group: list[ReceivedPush], stale: int) -> Contribution:
        lr = self.config.learning_rate(self.examples)
        correction, self.learning_rate = momentum_correction(self.learning_rate, lr), lr
        if self.config.harmless_staleness is not None:
            lr /= max(1, 1 + stale - self.config.harmless_staleness)
        if not self.config.quorum:
            # The worker divided each minibatch's gradient by its own examples; what was accrued is their sum.
            (push,) = group
            gradient, fetched = TensorGradient(push.gradient), self._fetched_by(push.worker)
            return Contribution(gradient, 1, lr, push.minibatches, correction, self.examples, fetched=fetched)
        weight = sum(push.divisor for push in group)
        if self.backup_quorum is not None:
            ordered = sorted(group, key=lambda push: push.identity)
            leaves = TreeSum(len(group), {(i, i + 1): push.gradient for i, push in enumerate(ordered)})
            return Contribution(leaves, weight, lr, correction=correction, seen=self.examples)
        first = min(push.identity.first for push in group)
        parts = {(p.identity.first - first, p.identity.last - first + 1): p.gradient for p in group}
        return Contribution(TreeSum(self.config.quorum, parts), weight, lr, correction=correction, seen=self.examples)

    def _fetched_by(self, worker: int) -> Tensor | None:
        """(n,) the parameters that a worker's push was computed from: the version that it still reads, since its next
        fetch waits for its pushes. None where they lay in the memory of a node that is lost."""
        row = self.pinned.get(worker)
        return None if row is None else self.ring[row]

    def _switch(self, contributions: list[Contribution], before: SliceVersion) -> None:
        self._commit(before)  # from here on the version before it is incomplete
        taken = {self.current, *self.pinned.values()}
        target = next(i for i in range(len(self.ring)) if i not in taken)
        following = Buffers(self.ring[target], self.states[1 - self.newest_state])
        self.config.update.apply(contributions, Buffers(self.params, self.state), following)
        self.current, self.newest_state = target, 1 - self.newest_state

    # -- what outlives the process ----------------------------------------------------------------------------------

    def begin(self, params: Tensor, state: State, again: bool = False) -> None:
        """Begin from parameters (n,) and the state beside them, with what was set to be applied already.

        again: another process may have served before this one. Workers may still read rows of the ring, which are not
        written to; nothing is applied past them until they come back and tell their clocks.
        """
        if again:
            self.pinned = self.journal.pinned()
            self.clocks = dict.fromkeys(self.pinned, 0)
        else:
            self.journal.begin()
        self.current = next(i for i in range(len(self.ring)) if i not in self.pinned.values())
        self.params.copy_(params)
        for kept in self.states:
            for name, vector in state.items():
                kept[name].copy_(vector)
        begun = [PushIdentity(epoch, first, last, group) for epoch, group, first, last in self.applied.to_json()]
        self.logged = self.journal.append(begun, 0) + len(begun)
        self._commit()

    def restore(self, left: JournalContents) -> None:
        """Go on where another process ended, from what its journal contains."""
        self._return_to(left.record.newest)
        self.before = left.record.before
        self.pinned = dict(left.pinned)
        self.clocks = {member.worker: member.clock for member in left.record.members}
        self.applied = IdentitySet.from_json(left.rows)
        rows = left.rows[left.record.before.logged :]
        self.latest = [PushIdentity(epoch, first, last, group) for epoch, group, first, last in rows]
        if self.backup_quorum is not None:
            admitted = {member.worker for member in left.record.members if member.is_admitted}
            self.backup_quorum.restore(set(self.clocks), self.version, admitted)

    def prepare_generation(self, version: int) -> None:
        """Between two generations: forget all workers and every push that is not applied, and go back to `version` if
        this shard is one ahead, so that the step is done anew.

        Raises:
            RunFailed: The version is neither the newest nor the one before, or that is gone.
        """
        if self.version != version:
            before = self.before
            if before is None or before.number != version or self.version != version + 1:
                raise RunFailed(f"a shard at version {self.version} cannot go back to {version}")
            self._return_to(before)
            for identity in self.latest:
                self.applied.discard(identity)
            self.before, self.latest = None, []
        self.ripe.clear()
        self.last_of.clear()
        self.parts.clear()
        self.clocks.clear()
        for reader in self.pinned:
            self.journal.unpin(reader)
        self.pinned.clear()
        if self.backup_quorum is not None:
            self.backup_quorum = BackupQuorum(self.config.quorum, self.config.backup)
        self._commit()

    def _return_to(self, version: SliceVersion) -> None:
        self.version, self.current, self.newest_state = version.number, version.row, version.state
        self.examples, self.learning_rate, self.logged = version.examples, version.learning_rate, version.logged

    def record(self) -> Record:
        """What the journal keeps of it between two updates."""
        newest = self._newest()
        return Record(newest, self.before or newest, self._members())

    def _newest(self) -> SliceVersion:
        where = self.version, self.current, self.newest_state
        return SliceVersion(*where, self.examples, self.learning_rate, self.logged)

    def _members(self) -> tuple[WorkerRecord, ...]:
        if self.backup_quorum is None:
            fields = zip(self.clocks, self.clocks.values(), repeat(False))
            return tuple(map(tuple.__new__, repeat(WorkerRecord), fields))
        admitted = self.backup_quorum.admitted_to(self.version)
        return tuple(WorkerRecord(worker, clock, worker in admitted) for worker, clock in self.clocks.items())

    def _commit(self, only: SliceVersion | None = None) -> None:
        """Commit the newest version and the one before it to the journal, or that there is `only` one."""
        self.journal.commit(self.record() if only is None else Record(only, only, self._members()))
