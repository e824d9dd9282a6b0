"""The seams between an algorithm and the machines: `Collectives` among workers, `ParameterStore` towards shards.

Every call returns a handle; what it asks for is done when `wait()` returns, so that communication can overlap
computation. `waited_s` counts the seconds that `wait()` stood still: it is what the run reports as communication.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from trainers.optim.update import Gradient, Whole, spans
from trainers.store.identity import PushIdentity
from trainers.transport.canonical import Node, TreeSum, block, subtrees

if TYPE_CHECKING:
    from trainers.transport.messages import Lane

T = TypeVar("T")


@dataclass
class Traffic:
    """Bytes of vectors that left and reached this worker; on shared memory, what others read of its and it of theirs.

    What a worker hands to itself and the few bytes of barriers, clocks and push identities do not count.
    """

    sent_bytes: int = 0
    received_bytes: int = 0
    shuffled_bytes: int = 0
    """Of those sent: training examples."""
    crossed_bytes: int = 0
    """Of those sent: to workers on other nodes."""
    _lock: Lock = field(default_factory=Lock, repr=False, compare=False)  # several threads may exchange at a time

    def count(self, sent: int, received: int, crossed: int = 0) -> None:
        """Add numbers of float32 elements; `crossed`: of those sent."""
        with self._lock:
            self.sent_bytes += 4 * sent
            self.received_bytes += 4 * received
            self.crossed_bytes += 4 * crossed


@dataclass
class Waits:
    """How often a worker has fetched from the shards and pushed to them, and how long it stood still for either."""

    fetches: int = 0
    fetch_s: float = 0.0
    pushes: int = 0
    push_s: float = 0.0
    """For acknowledgements, and for a buffer to be free again."""


class Handle(Generic[T]):
    """A call that was begun. `wait` finishes it and returns its result, any number of times."""

    def __init__(self, finish: Callable[[], T]) -> None:
        self._finish: Callable[[], T] | None = finish
        self._result: T | None = None

    def wait(self) -> T:
        """Stand still until it is done.

        Raises:
            PeerLost: A process that takes part is gone.
        """
        if self._finish is not None:
            finish, self._finish = self._finish, None
            self._result = finish()
        return self._result  # type: ignore[return-value]  # T may itself be None


def done(value: T) -> Handle[T]:
    """A handle with nothing left to wait for."""
    return Handle(lambda: value)


@dataclass(frozen=True)
class Reduction:
    """A canonical reduction of vectors of `numel` elements over V virtual ranks on `size` workers."""

    num_virtual: int
    size: int
    numel: int

    def nodes(self, rank: int) -> list[Node]:
        """The subtrees whose sums worker `rank` ships, from left to right."""
        return subtrees(self.num_virtual, *block(self.num_virtual, rank, self.size))


@dataclass(frozen=True)
class Share:
    """What one worker has of the sum of a vector."""

    span: slice
    """Which part of the vector."""
    gradient: Gradient
    """The sum over it."""


class Collectives(ABC):
    """What K workers do together. All of them make the same calls in the same order.

    A transport supplies memory, `all_to_all`, `barrier` and lanes for point-to-point messages; the rest follows from
    these, and a transport that can do better says so by overriding. Whoever moves vectors counts them in `traffic`.
    """

    rank: int
    size: int
    waited_s: float = 0.0
    outlives: bool = False
    """Whether what a worker wrote into a replicated vector is there for the others when it has died."""
    sums_by_itself: bool = False
    """Whether `sum_bucket` is faster here than any all-reduce over messages."""

    @cached_property
    def traffic(self) -> Traffic:
        """What this worker has sent and received."""
        return Traffic()

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """The number of the node on which each worker is."""
        return (0,) * self.size

    # -- memory ---------------------------------------------------------------------------------------------------

    def replicated(self, name: str, numel: int) -> Tensor:
        """A vector (numel,) of float32 zeros that all workers see alike after `all_gather`.

        On shared memory it is one vector: before `all_gather` returns, a worker may only write into its own span.
        """
        return torch.zeros(numel)

    def parts(self, reduction: Reduction) -> list[Tensor]:
        """One vector (numel,) for each of this worker's nodes, in memory from which it can be sent as it lies."""
        return [torch.zeros(reduction.numel) for _ in reduction.nodes(self.rank)]

    def span(self, numel: int) -> slice:
        """The 1/K of a vector that this worker reduces and updates (paper 1, section 4.1)."""
        return spans(numel, self.size)[self.rank]

    def kept(self, numel: int) -> slice:
        """What this worker writes of a version that is to outlive any one of them: of a replicated vector that others
        see, its share; the others write the rest, and `complete` says when it is there."""
        return slice(0, numel)

    def complete(self) -> Handle[None]:
        """Wait for those who see the same replicated vectors: each has written what is its to keep."""
        return done(None)

    # -- what a transport must do ---------------------------------------------------------------------------------

    @abstractmethod
    def all_to_all(self, send: Sequence[Tensor], receive: Sequence[Tensor]) -> Handle[None]:
        """Send `send[k]` to worker k and fill `receive[k]` with what k sent; flat float32, of any agreed sizes."""

    @abstractmethod
    def barrier(self, signal: int = 0) -> Handle[int]:
        """Wait for all; the result is the largest signal of any worker, so that a group can decide together."""

    @abstractmethod
    def subgroup(self, ranks: Sequence[int]) -> Collectives | None:
        """Collectives among some of the workers, numbered as in `ranks`; None for those outside. All must call it."""

    @abstractmethod
    def lane(self, index: int) -> Lane:
        """Way number `index` for exchanges of point-to-point messages that go on beside the caller."""

    @abstractmethod
    def close(self) -> None:
        """Let go of memory and connections; a peer that waits gets `PeerLost`. May be called from another thread."""

    # -- accounts -------------------------------------------------------------------------------------------------

    def _count_exchange(self, send: Sequence[Tensor], receive: Sequence[Tensor]) -> None:
        """Of an `all_to_all`."""
        others = [k for k in range(self.size) if k != self.rank]
        crossed = sum(send[k].numel() for k in self._elsewhere)
        self.traffic.count(sum(send[k].numel() for k in others), sum(receive[k].numel() for k in others), crossed)

    def _count_canonical(self, reduction: Reduction) -> None:
        """Of a `reduce_canonical`: each of this worker's parts but for its own span, and the others' parts of that."""
        numel, parts = reduction.numel, len(reduction.nodes(self.rank))
        mine, cuts = self._width(numel), spans(numel, self.size)
        theirs = sum(len(reduction.nodes(k)) for k in range(self.size) if k != self.rank)
        crossed = sum(cuts[k].stop - cuts[k].start for k in self._elsewhere)
        self.traffic.count(parts * (numel - mine), theirs * mine, parts * crossed)

    def _count_gather(self, numel: int) -> None:
        """Of an `all_gather`."""
        mine = self._width(numel)
        self.traffic.count((self.size - 1) * mine, numel - mine, len(self._elsewhere) * mine)

    def _count_broadcast(self, numel: int, root: int) -> None:
        if self.rank == root:
            self.traffic.count((self.size - 1) * numel, 0, len(self._elsewhere) * numel)
        else:
            self.traffic.count(0, numel)

    def _width(self, numel: int) -> int:
        mine: tuple[int, int, int] = self.span(numel).indices(numel)
        return mine[1] - mine[0]

    @cached_property
    def _elsewhere(self) -> list[int]:
        """The workers on other nodes."""
        return [k for k, node in enumerate(self.nodes) if node != self.nodes[self.rank]]

    # -- what follows from it -------------------------------------------------------------------------------------

    def reduce_canonical(self, reduction: Reduction, parts: Sequence[Tensor]) -> Handle[Gradient]:
        """Exchange the subtrees' sums; the result is the ordered sum over all virtual ranks of this worker's span.

        It is valid until this worker enters its next collective call.
        """
        cuts = spans(reduction.numel, self.size)
        mine = cuts[self.rank]
        width = mine.stop - mine.start
        send = [torch.cat([part[cut] for part in parts]) for cut in cuts]
        nodes = [reduction.nodes(k) for k in range(self.size)]
        receive = [send[0].new_empty(len(own) * width) for own in nodes]
        exchange = self.all_to_all(send, receive)

        def ordered() -> Gradient:
            exchange.wait()
            found: dict[Node, Tensor] = {}
            for own, rows in zip(nodes, receive, strict=True):
                found.update(zip(own, rows.view(len(own), width), strict=True))
            return TreeSum(reduction.num_virtual, found)

        return Handle(ordered)

    def all_gather(self, vector: Tensor, signal: int = 0) -> Handle[int]:
        """Complete a replicated vector of which each worker has written its own span. The result is as of `barrier`."""
        cuts = spans(vector.numel(), self.size)
        receive = [vector.new_empty(cut.stop - cut.start) for cut in cuts]
        exchange = self.all_to_all([vector[cuts[self.rank]]] * self.size, receive)
        agreement = self.barrier(signal)

        def fill() -> int:
            exchange.wait()
            for cut, values in zip(cuts, receive, strict=True):
                vector[cut] = values
            return agreement.wait()

        return Handle(fill)

    def reduce_scatter(self, vector: Tensor) -> Handle[Tensor]:
        """The sum over the workers, in the order of their ranks, of this worker's span of `vector` (n,)."""
        cuts = spans(vector.numel(), self.size)
        mine = cuts[self.rank]
        receive = [vector.new_empty(mine.stop - mine.start) for _ in cuts]
        exchange = self.all_to_all([vector[cut] for cut in cuts], receive)

        def ordered() -> Tensor:
            exchange.wait()
            total = receive[0].clone()
            for values in receive[1:]:
                total += values
            return total

        return Handle(ordered)

    def all_reduce_sum(self, vector: Tensor) -> Handle[None]:
        """Replace `vector` (n,) by its sum over the workers, in the order of their ranks."""
        reduced = self.reduce_scatter(vector)

        def finish() -> None:
            whole = [vector[cut] for cut in spans(vector.numel(), self.size)]
            self.all_to_all([reduced.wait()] * self.size, whole).wait()

        return Handle(finish)

    def sum_bucket(self, part: Tensor, bucket: slice) -> Handle[Share]:
        """Begin the sum over the workers of one bucket of `part` (P,), which `parts` gave, in the transport's own way.

        Handles are waited for in the order of the calls. The bucket may be written to again after `gather_buckets`.
        """
        reduced = self.reduce_scatter(part[bucket])
        mine = self.span(bucket.stop - bucket.start)
        return Handle(lambda: Share(mine, Whole(reduced.wait())))

    def gather_buckets(self, vector: Tensor, buckets: Sequence[slice]) -> None:
        """Complete a replicated vector of which each worker has written its shares, as `sum_bucket` gave them."""
        for bucket in buckets:
            self.all_gather(vector[bucket]).wait()

    def broadcast(self, vector: Tensor, root: int) -> Handle[None]:
        """Replace `vector` (n,) by the root's."""
        empty = vector.new_empty(0)
        send = [vector if self.rank == root else empty] * self.size
        receive = [vector.new_empty(vector.numel() if k == root else 0) for k in range(self.size)]
        exchange = self.all_to_all(send, receive)

        def finish() -> None:
            exchange.wait()
            vector.copy_(receive[root])

        return Handle(finish)


@dataclass(frozen=True)
class Push:
    """What a worker says when it hands over a gradient buffer."""

    identity: PushIdentity
    clock: int
    """The worker's clock after the minibatches in it: how many it has computed."""
    examples: int
    """Examples whose gradients are in it."""
    minibatches: int = 1
    """Minibatches whose gradients are in it."""
    delay: int = 0
    """Fetches of its group since the one whose parameters the gradient was computed from."""


@dataclass(frozen=True)
class Fetched:
    """Parameters as they came from the shards."""

    params: Tensor
    """(P,) float32, to be read only; the part of the group that was fetched is valid until that group's next fetch."""
    examples: int
    """Examples applied so far, on the shard that is furthest behind."""
    updates: int
    """Updates made so far, on the shard that is furthest behind."""


class ParameterStore(Protocol):
    """A worker's way to the shards. A store's calls are made by one thread, `close` by any.

    The vector may be divided into groups of parameters, each with versions and clocks of its own; one group, number 0,
    is all of it.
    """

    waited_s: float
    traffic: Traffic
    waits: Waits
    updates: int
    """Updates that the first shard had made when it last acknowledged a push of this worker."""
    clock_at_start: int
    """From where this worker counts its minibatches: the clock of the slowest live worker when it joined, so that
    bounded staleness neither has the others wait for it nor lets it run ahead."""

    @property
    def staleness(self) -> dict[int, int]:
        """How many of this worker's pushes were applied at which staleness (updates between fetch and application):
        on the first shard that a group lies on, and in the stalest group."""
        ...

    @property
    def group_staleness(self) -> list[dict[int, int]]:
        """Likewise in each group."""
        ...

    @property
    def applied(self) -> list[Push]:
        """Pushes that every shard has acknowledged since this was last read, in every group."""
        ...

    def fetch(self, min_clock: int, group: int = 0) -> Handle[Fetched]:
        """A group's parameters once no live worker's clock in it is below `min_clock`: t is synchronous, t - s is
        bounded staleness s, 0 is asynchronous. With backup workers, once so many steps are made. One fetch of a group
        at a time.

        Raises:
            StoreClosed: The store was shut down.
        """
        ...

    def claim(self, clock: int) -> Handle[bool]:
        """Ask for a place in the step after version `clock`, for a gradient computed from that; with backup workers
        only. Who gets none must not push it.

        Raises:
            StoreClosed: The store was shut down.
        """
        ...

    def gradient_buffer(self) -> Tensor:
        """A vector (P,) of float32, with anything in it, free since its last pushes were taken."""
        ...

    def push(self, push: Push) -> Handle[None]:
        """Hand over the part of a group, once, of the buffer that `gradient_buffer` gave last. `wait` returns when
        every shard has applied it."""
        ...

    def settle(self) -> None:
        """Wait until every shard has applied whatever this worker has pushed. With a quorum, the step is made then."""
        ...

    def leave(self) -> None:
        """Say that this worker will push no more, so that nobody waits for its clock. Waits for its last pushes."""
        ...

    def close(self) -> None:
        """Let go of memory and connections."""
        ...


class Doorbell(Protocol):
    """Tells the other side something small: that a slot is full, that a version is there."""

    def ring(self, message: bytes) -> None:
        """Send one message, whole or not at all.

        Raises:
            PeerLost: The other side is gone.
        """
        ...

    def answer(self) -> bytes:
        """Wait for one message.

        Raises:
            PeerLost: The other side is gone.
        """
        ...
