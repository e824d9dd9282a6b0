"""The ledger of an asynchronous run: which minibatches are leased to whom, and which were applied.

Workers lease ranges of neighbouring minibatches ahead of need. A minibatch counts as trained when the shards have
acknowledged the push that covers it, not when it was leased.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainers.elastic.order import Order

SHARES = 8
"""A lease is at most so small a part of a team's share of what is left: a worker has up to four at hand, and the last
of a run must not wait in one worker's hands while the others have nothing to do."""

NOBODY = -1
"""The team of a worker that was given up: what it did counts, what it had leased was issued again."""


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


class Ledger:
    """Leases epochs in their order, and counts what was applied. An epoch costs nothing before it is begun: whoever
    means to stop a run by hand asks for a hundred thousand."""

    def __init__(
        self, order: Order, epochs: int, lease_size: int, done: Iterable[Lease] = (), multiple: int = 1
    ) -> None:
        """lease_size: The longest lease, in minibatches. multiple: Leases are of so many, but an epoch's last."""
        self.order = order
        self.epochs = epochs
        self.lease_size = lease_size
        self.multiple = multiple
        self.counts: list[bytearray] = []  # times applied, by epoch and minibatch
        self.open: dict[int, list[Lease]] = {}  # worker -> leases that are not wholly applied
        self.trained = 0
        for lease in done:
            self._count(lease)
        self.free: deque[Lease] = deque()  # of the epochs that were begun
        self.begun = 0
        self.whole = 0  # epochs, from the first on, that are known to be wholly applied

    def lease(self, worker: int, teams: int | None = None) -> Lease | None:
        """The next minibatches for a worker; None when there are none left to lease. Where it is said how many `teams`
        there are, the leases become shorter towards the end."""
        while self.has_more():
            longest = self.lease_size if teams is None else self._fair(teams)
            first, rest = _cut(self.free.popleft(), longest)
            left = self._left(first)  # pushes of the one who held it before may have come in since
            self.free.extendleft(reversed([*left[1:], *rest]))
            if left:
                self.open.setdefault(worker, []).append(left[0])
                return left[0]
        return None

    def has_more(self) -> bool:
        """Whether anything is left to lease."""
        while not self.free and self.begun < self.epochs:
            self.free.extend(self._left(Lease(self.begun, 0, self.order.minibatches - 1)))
            self.begun += 1
        return bool(self.free)

    def _fair(self, teams: int) -> int:
        remaining = sum(map(len, self.free)) + (self.epochs - self.begun) * self.order.minibatches
        fair = min(self.lease_size, remaining // (SHARES * teams))
        return max(fair // self.multiple, 1) * self.multiple

    def applied(self, worker: int, done: Lease) -> None:
        """The shards have applied a push over these minibatches."""
        self._count(done)
        mine = self.open.get(worker, [])
        self.open[worker] = [lease for lease in mine if not self._complete(lease)]

    def is_applied(self, lease: Lease) -> bool:
        """Whether all of it is."""
        return self._complete(lease)

    def release(self, worker: int) -> None:
        """Issue again what a worker has leased and not got applied; the next to ask get it first."""
        for lease in reversed(self.open.pop(worker, [])):
            self.free.extendleft(reversed(self._left(lease)))

    def drop(self, worker: int, lease: Lease) -> None:
        """Issue a lease again of which nothing was pushed; the next to ask gets it."""
        self.open[worker].remove(lease)
        self.free.appendleft(lease)

    def epochs_done(self) -> int:
        """How many epochs, from the first on, are wholly applied."""
        while self.whole < min(self.epochs, len(self.counts)) and 0 not in self.counts[self.whole]:
            self.whole += 1
        return self.whole

    def audit(self, epoch: int) -> Audit:
        """Each example trained once, none lost, none twice: what really was."""
        counts, size = self._counts(epoch), self.order.size
        trained = sum(size(i) for i, count in enumerate(counts) if count)
        lost = sum(size(i) for i, count in enumerate(counts) if not count)
        return Audit(epoch, trained, lost, sum(size(i) * (count - 1) for i, count in enumerate(counts) if count > 1))

    def _count(self, done: Lease) -> None:
        counts = self._counts(done.epoch)
        for i in range(done.first, min(done.last + 1, len(counts))):
            counts[i] += 1
            self.trained += self.order.size(i)

    def _left(self, lease: Lease) -> list[Lease]:
        """What of a lease has not been applied."""
        counts = self._counts(lease.epoch)
        rest = [i for i in lease.minibatches if not counts[i]]
        return list(_runs(lease.epoch, rest))

    def _complete(self, lease: Lease) -> bool:
        return all(self._counts(lease.epoch)[lease.first : lease.last + 1])

    def _counts(self, epoch: int) -> bytearray:
        while len(self.counts) <= epoch:
            self.counts.append(bytearray(self.order.minibatches))
        return self.counts[epoch]


class Desk:
    """Hands out a ledger's leases to teams of workers: those of a team get the same ones in the same order."""

    def __init__(self, ledger: Ledger, teams: Sequence[Sequence[int]] = ()) -> None:
        """teams: The workers of each, by number."""
        self.ledger = ledger
        self.team_of: dict[int, int] = {}  # worker -> team
        self.waiting: dict[int, deque[Lease | None]] = {}  # worker -> what its team has got and it has not
        for team, workers in enumerate(teams):
            self.form(team, workers)

    def form(self, team: int, workers: Sequence[int]) -> None:
        """These are the team from now on. What it had leased before and not got applied is issued again."""
        self.ledger.release(team)
        self.team_of = {worker: other for worker, other in self.team_of.items() if other != team}
        self.team_of |= dict.fromkeys(workers, team)
        self.waiting = {worker: waiting for worker, waiting in self.waiting.items() if worker in self.team_of}
        self.waiting |= {worker: deque() for worker in workers}

    def lease(self, worker: int, closed: bool = False) -> Lease | None:
        """The next minibatches for a worker's team. None is the end: all are leased, or the desk is `closed`, and
        the others of the team have no lease that this worker has not."""
        if worker not in self.team_of:
            return None  # it was given up, and asks a last time
        if not self.waiting[worker]:
            team = self.team_of[worker]
            lease = None if closed else self.ledger.lease(team, len(set(self.team_of.values())))
            for member, waiting in self.waiting.items():
                if self.team_of[member] == team:
                    waiting.append(lease)
        return self.waiting[worker].popleft()

    def applied(self, worker: int, done: Lease) -> None:
        """The shards have applied a push of a worker's team."""
        self.ledger.applied(self.team_of.get(worker, NOBODY), done)

    def drop(self, worker: int, lease: Lease) -> None:
        """A worker has dropped the gradient of a lease."""
        if worker in self.team_of:
            self.ledger.drop(self.team_of[worker], lease)


def _cut(lease: Lease, longest: int) -> tuple[Lease, list[Lease]]:
    """Its first minibatches, and what is behind them."""
    if len(lease) <= longest:
        return lease, []
    behind = lease.first + longest
    return Lease(lease.epoch, lease.first, behind - 1), [Lease(lease.epoch, behind, lease.last)]


def _runs(epoch: int, indices: list[int]) -> Iterable[Lease]:
    """Runs of neighbours among ascending indices."""
    start = 0
    for i in range(1, len(indices) + 1):
        if i == len(indices) or indices[i] != indices[i - 1] + 1:
            yield Lease(epoch, indices[start], indices[i - 1])
            start = i
