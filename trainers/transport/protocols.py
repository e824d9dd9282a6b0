"""The seams between an algorithm and the machines: `Collectives` among workers, `ParameterStore` towards shards.

Every call returns a handle; what it asks for is done when `wait()` returns, so that communication can overlap
computation. `waited_s` counts the seconds that `wait()` stood still: it is what the run reports as communication.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from trainers.optim.update import Gradient, spans
from trainers.store.identity import PushIdentity
from trainers.transport.canonical import Node, TreeSum, block, subtrees

T = TypeVar("T")


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


class Collectives(ABC):
    """What K workers do together. All of them make the same calls in the same order.

    A transport supplies memory, `all_to_all` and `barrier`; the rest follows from these, and a transport that can do
    better says so by overriding.
    """

    rank: int
    size: int
    waited_s: float = 0.0

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

    # -- what a transport must do ---------------------------------------------------------------------------------

    @abstractmethod
    def all_to_all(self, send: Sequence[Tensor], receive: Sequence[Tensor]) -> Handle[None]:
        """Send `send[k]` to worker k and fill `receive[k]` with what k sent; flat float32, of any agreed sizes."""

    @abstractmethod
    def barrier(self, signal: int = 0) -> Handle[int]:
        """Wait for all; the result is the largest signal of any worker, so that a group can decide together."""

    @abstractmethod
    def subgroup(self, ranks: Sequence[int]) -> "Collectives | None":
        """Collectives among some of the workers, numbered as in `ranks`; None for those outside. All must call it."""

    @abstractmethod
    def close(self) -> None:
        """Let go of memory and connections; a peer that waits gets `PeerLost`. May be called from another thread."""

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


@dataclass(frozen=True)
class Fetched:
    """Parameters as they came from the shards."""

    params: Tensor
    """(P,) float32, to be read only; valid until the next fetch."""
    examples: int
    """Examples applied so far, on the shard that is furthest behind."""


class ParameterStore(Protocol):
    """A worker's way to the shards. A store's calls are made by one thread, `close` by any."""

    waited_s: float

    @property
    def staleness(self) -> dict[int, int]:
        """How many of this worker's pushes were applied at which staleness (updates between fetch and application),
        on the first shard."""
        ...

    @property
    def applied(self) -> list[Push]:
        """Pushes that every shard has acknowledged since this was last read."""
        ...

    def fetch(self, min_clock: int) -> Handle[Fetched]:
        """The parameters once no live worker's clock is below `min_clock`: t is synchronous, t - s is bounded
        staleness s, 0 is asynchronous.

        Raises:
            StoreClosed: The store was shut down.
        """
        ...

    def gradient_buffer(self) -> Tensor:
        """A vector (P,) of float32, with anything in it, free since its last push was taken."""
        ...

    def push(self, push: Push) -> Handle[None]:
        """Hand over the buffer that `gradient_buffer` gave last. `wait` returns when every shard has applied it."""
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
