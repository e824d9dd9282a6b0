"""The lease table of an asynchronous run: which minibatches are leased to which group, and which were applied.

Workers lease ranges of neighbouring minibatches ahead of need. A minibatch counts as trained when the shards have
acknowledged the push that covers it, not when it was leased.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainers.data.order import Order

SHARES = 8
"""A lease is at most this fraction of a group's share of what is left. A worker has up to four leases at hand, and the
last minibatches of a run must not wait in one worker's hands while the others have nothing to do."""

NO_GROUP = -1
"""The group of a worker that was given up: what it did counts, and what it had leased was leased again."""


@dataclass(frozen=True)
class Lease:
    """Minibatches `first` to `last`, inclusive, of an epoch."""

    epoch: int
    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first + 1

    @property
    def minibatches(self) -> range:
        """Their numbers."""
        return range(self.first, self.last + 1)


@dataclass(frozen=True)
class Audit:
    """What became of an epoch's examples, from what was applied."""

    epoch: int
    trained: int
    lost: int
    duplicated: int


class LeaseTable:
    """Leases epochs in their order, and counts what was applied. An epoch costs nothing before it is begun, because a
    run that is to be stopped by hand is given a hundred thousand."""

    def __init__(
        self,
        order: Order,
        epochs: int,
        lease_size: int,
        done: Iterable[Lease] = (),
        multiple: int = 1,
        rest: int = 0,
    ) -> None:
        """lease_size: The longest lease, in minibatches. multiple: The length of every lease but an epoch's last is a
        multiple of this. rest: Minibatches of the epoch after the whole ones."""
        self.order = order
        self.epochs = epochs
        self.rest = rest
        self.lease_size = lease_size
        self.multiple = multiple
        self.counts: list[bytearray] = []  # times applied, by epoch and minibatch
        self.open: dict[int, list[Lease]] = {}  # by holder: leases that are not wholly applied
        self.trained = 0
        for lease in done:
            self._count(lease)
        self.free: deque[Lease] = deque()  # of the epochs that were begun
        self.begun = 0
        self.num_complete = 0  # epochs, from the first on, that are known to be wholly applied

    def lease(self, holder: int, num_holders: int | None = None, longest: int | None = None) -> Lease | None:
        """The next minibatches for a holder, which is a worker or a group of them; None when none are left to lease.
        Leases become shorter towards the end, if it is said among how many holders the rest is divided; or are as long
        as is said."""
        while self.has_more():
            longest = longest or (self.lease_size if num_holders is None else self._fair(num_holders))
            first, rest = _cut(self.free.popleft(), longest)
            left = self._left(first)  # pushes of an earlier holder may have been applied since
            self.free.extendleft(reversed([*left[1:], *rest]))
            if left:
                self.open.setdefault(holder, []).append(left[0])
                return left[0]
        return None

    def has_more(self) -> bool:
        """Whether anything is left to lease."""
        while not self.free and self.begun < self.epochs + (self.rest > 0):
            minibatches = self.order.minibatches if self.begun < self.epochs else self.rest
            self.free.extend(self._left(Lease(self.begun, 0, minibatches - 1)))
            self.begun += 1
        return bool(self.free)

    def _fair(self, num_holders: int) -> int:
        remaining = sum(map(len, self.free)) + (self.epochs - self.begun) * self.order.minibatches + self.rest
        fair = min(self.lease_size, remaining // (SHARES * num_holders))
        return max(fair // self.multiple, 1) * self.multiple

    def applied(self, holder: int, done: Lease) -> None:
        """The shards have applied a push over these minibatches."""
        self._count(done)
        held = self.open.get(holder, [])
        self.open[holder] = [lease for lease in held if not self.is_applied(lease)]

    def is_applied(self, lease: Lease) -> bool:
        """Whether all minibatches of a lease are applied."""
        return all(self._counts(lease.epoch)[lease.first : lease.last + 1])

    def release(self, holder: int) -> None:
        """Take back what a holder has leased and not got applied; it is leased before everything else."""
        for lease in reversed(self.open.pop(holder, [])):
            self.free.extendleft(reversed(self._left(lease)))

    def drop(self, holder: int, lease: Lease) -> None:
        """Take back a lease of which nothing was pushed; it is the next to be leased."""
        self.open[holder].remove(lease)
        self.free.appendleft(lease)

    def epochs_done(self) -> int:
        """How many epochs, from the first on, are wholly applied."""
        while self.num_complete < min(self.epochs, len(self.counts)) and 0 not in self.counts[self.num_complete]:
            self.num_complete += 1
        return self.num_complete

    def audit(self, epoch: int) -> Audit:
        """Whether each example was trained exactly once, from what was applied and not from what was planned."""
        counts, size = self._counts(epoch), self.order.size
        trained = sum(size(i) for i, count in enumerate(counts) if count)
        lost = sum(size(i) for i, count in enumerate(counts) if not count)
        return Audit(epoch, trained, lost, sum(size(i) * (count - 1) for i, count in enumerate(counts) if count > 1))

    def unapplied(self, holder: int) -> int:
        """Examples that a holder has leased and not got applied."""
        left = (part for lease in self.open.get(holder, ()) for part in self._left(lease))
        return sum(self.order.size(i) for part in left for i in part.minibatches)

    def _count(self, done: Lease) -> None:
        counts = self._counts(done.epoch)
        for i in range(done.first, min(done.last + 1, len(counts))):
            counts[i] += 1
            self.trained += self.order.size(i)

    def _left(self, lease: Lease) -> list[Lease]:
        """The parts of a lease that have not been applied."""
        counts = self._counts(lease.epoch)
        rest = [i for i in lease.minibatches if not counts[i]]
        return list(_runs(lease.epoch, rest))

    def _counts(self, epoch: int) -> bytearray:
        while len(self.counts) <= epoch:
            self.counts.append(bytearray(self.order.minibatches))
        return self.counts[epoch]


class LeaseDispatcher:
    """Hands out the leases of a table to groups of workers: those of a group get the same ones in the same order."""

    def __init__(self, table: LeaseTable, groups: Sequence[Sequence[int]] = ()) -> None:
        """groups: The workers of each, by number."""
        self.table = table
        self.group_of: dict[int, int] = {}  # by worker
        self.members: dict[int, Sequence[int]] = {}  # by group, those that have any
        self.pending: dict[int, deque[Lease | None]] = {}  # by worker: what its group has got and it has not
        for group, workers in enumerate(groups):
            self.form(group, workers)

    def form(self, group: int, workers: Sequence[int]) -> None:
        """These are the group from now on. What it had leased before and not got applied is leased again."""
        self.table.release(group)
        left = [*self.members.get(group, ()), *(worker for worker in workers if worker in self.group_of)]
        for worker in dict.fromkeys(left):
            self._leave(worker)
        if workers:
            self.members[group] = tuple(workers)
        self.group_of |= dict.fromkeys(workers, group)
        self.pending |= {worker: deque() for worker in workers}

    def _leave(self, worker: int) -> None:
        """A worker belongs to no group for now."""
        del self.pending[worker]
        group = self.group_of.pop(worker)
        rest = tuple(member for member in self.members.pop(group) if member != worker)
        if rest:
            self.members[group] = rest

    def lease(self, worker: int, closed: bool = False, longest: int | None = None) -> Lease | None:
        """The next minibatches for a worker's group; `longest` of them, if that is said. None is the end: everything
        is leased, or the run is `closed`, and the others of the group have no lease that this worker has not."""
        if worker not in self.group_of:
            return None  # it was given up, and asks a last time
        if not self.pending[worker]:
            group = self.group_of[worker]
            lease = None if closed else self.table.lease(group, len(self.members), longest)
            for member in self.members[group]:
                self.pending[member].append(lease)
        return self.pending[worker].popleft()

    def applied(self, worker: int, done: Lease) -> None:
        """The shards have applied a push of a worker's group."""
        self.table.applied(self.group_of.get(worker, NO_GROUP), done)

    def applied_by_group(self, group: int, done: Lease) -> None:
        """The shards have applied a push of this group; it may have been reported before."""
        if not self.table.is_applied(done):
            self.table.applied(group, done)

    def drop(self, worker: int, lease: Lease) -> None:
        """A worker has dropped the gradient of a lease."""
        if worker in self.group_of:
            self.table.drop(self.group_of[worker], lease)

    def serves(self, worker: int) -> bool:
        """Whether a worker belongs to a group."""
        return worker in self.group_of

    def lost_of(self, group: int, members: Sequence[int]) -> int:
        """Examples that a group has leased and not got applied, if any but these of its workers are gone; else 0."""
        is_whole = set(self.members.get(group, ())) <= set(members)
        return 0 if is_whole else self.table.unapplied(group)

    def is_first(self, worker: int) -> bool:
        """Whether a worker is the first of its group."""
        return worker in self.group_of and self.members[self.group_of[worker]][0] == worker

    def open_leases(self, group: int) -> Sequence[Lease]:
        """What a group has leased and not got applied."""
        return self.table.open.get(group, ())

    def has_more(self) -> bool:
        """Whether anything is left to lease."""
        return self.table.has_more()

    @property
    def trained(self) -> int:
        """Examples that were applied."""
        return self.table.trained

    def epochs_done(self) -> int:
        """How many epochs, from the first on, are wholly applied."""
        return self.table.epochs_done()

    def audit(self, epoch: int) -> Audit:
        """What became of an epoch's examples."""
        return self.table.audit(epoch)


def _cut(lease: Lease, longest: int) -> tuple[Lease, list[Lease]]:
    """Its first minibatches, and the rest."""
    if len(lease) <= longest:
        return lease, []
    rest = lease.first + longest
    return Lease(lease.epoch, lease.first, rest - 1), [Lease(lease.epoch, rest, lease.last)]


def _runs(epoch: int, indices: list[int]) -> Iterable[Lease]:
    """Runs of neighbours among ascending indices."""
    start = 0
    for i in range(1, len(indices) + 1):
        if i == len(indices) or indices[i] != indices[i - 1] + 1:
            yield Lease(epoch, indices[start], indices[i - 1])
            start = i
