"""The seam between an algorithm and the other workers: `Collectives`.

Every call returns a handle; what it asks for is done when `wait()` returns, so that communication can overlap
computation. `waited_s` counts the seconds that `wait()` stood still: it is what the run reports as communication.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from trainers.collectives.messages import Lane, Messages
from trainers.collectives.ordered_sum import sum_beside
from trainers.collectives.reduction import ReducedSpan, Reduction
from trainers.collectives.reduction_tree import Node, TreeSum
from trainers.links.encoding import DTYPES, encoded
from trainers.links.handle import Handle, done
from trainers.links.meter import Meter
from trainers.links.names import WireName
from trainers.optim.gradient import Gradient, TensorGradient
from trainers.optim.slices import cuts_at, spans


class Collectives(ABC):
    """What K workers do together. All of them make the same calls in the same order.

    A transport supplies memory, `all_to_all`, `barrier` and lanes for point-to-point messages; the rest follows from
    these, and a transport that can do better says so by overriding. Whoever moves vectors counts them in `meter`.
    """

    rank: int
    size: int
    device: torch.device = torch.device("cpu")
    """Where the vectors lie that it supplies."""
    waited_s: float = 0.0
    survives_worker: bool = False
    """Whether what a worker wrote into a replicated vector is there for the others when it has died."""
    sums_by_itself: bool = False
    """Whether `sum_bucket` is faster here than any all-reduce over messages."""
    sums_beside: bool = False
    """Whether a canonical sum is made of messages from each to each, which may as well travel beside the caller."""

    @cached_property
    def meter(self) -> Meter:
        """What this worker has sent and received."""
        return Meter()

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """The number of the node on which each worker is."""
        return (0,) * self.size

    # -- memory ---------------------------------------------------------------------------------------------------

    def replicated(self, name: str, numel: int) -> Tensor:
        """A vector (numel,) of float32 zeros that all workers see alike after `all_gather`.

        On shared memory it is one vector: before `all_gather` returns, a worker may only write into its own span.
        """
        return torch.zeros(numel, device=self.device)

    def parts(self, reduction: Reduction) -> list[Tensor]:
        """One vector (numel,) for each of this worker's nodes, of the numbers in which it travels, in memory from which
        it can be sent as it lies."""
        nodes = reduction.nodes(self.rank)
        return [encoded(torch.zeros(reduction.numel, device=self.device), reduction.wire_of(node)) for node in nodes]

    def cut_at(self, places: Sequence[int]) -> None:
        """From now on divide vectors of `places[-1]` elements at some of these places only, which begin with 0."""
        self.places[places[-1]] = tuple(places)
        self._cuts.clear()
        self._canonical_bytes.clear()

    @cached_property
    def places(self) -> dict[int, tuple[int, ...]]:
        """Elements of a vector -> where it may be divided; of others, anywhere."""
        return {}

    def shares(self, numel: int) -> list[slice]:
        """How a vector is divided among the workers, by rank: as equally as its `places` allow."""
        found = self._cuts.get(numel)
        if found is None:
            places = self.places.get(numel)
            found = spans(numel, self.size) if places is None else cuts_at(places, self.size)
            self._cuts[numel] = found
        return found

    @cached_property
    def _cuts(self) -> dict[int, list[slice]]:
        """`shares` by elements, as long as nothing changes them: each step asks several times."""
        return {}

    @cached_property
    def _canonical_bytes(self) -> dict[Reduction, tuple[int, int, int]]:
        """Likewise, what a reduction sends, receives, and sends to other nodes."""
        return {}

    def span(self, numel: int) -> slice:
        """The 1/K of a vector that this worker reduces and updates (paper 1, section 4.1)."""
        return self.shares(numel)[self.rank]

    def persistent_span(self, numel: int) -> slice:
        """What this worker writes of a version that is to outlive any one of them: of a replicated vector that others
        see, its share; the others write the rest, and `complete` says when it is there."""
        return slice(0, numel)

    def complete(self) -> Handle[None]:
        """Wait for those who see the same replicated vectors: each has written what is its to keep."""
        return done(None)

    # -- what a transport must do ---------------------------------------------------------------------------------

    @abstractmethod
    def all_to_all(self, send: Sequence[Tensor], receive: Sequence[Tensor]) -> Handle[None]:
        """Send `send[k]` to worker k and fill `receive[k]` with what k sent; flat, all of one type, of any agreed
        sizes."""

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
        crossed = sum(send[k].nbytes for k in self._elsewhere)
        self.meter.count_bytes(sum(send[k].nbytes for k in others), sum(receive[k].nbytes for k in others), crossed)

    def _count_canonical(self, reduction: Reduction) -> None:
        """Of a `reduce_canonical`: each of this worker's parts but for its own span, and the others' parts of that."""
        found = self._canonical_bytes.get(reduction)
        if found is None:
            numel, parts = reduction.numel, reduction.num_bytes(self.rank)
            mine, cuts = self._width(numel), self.shares(numel)
            theirs = sum(reduction.num_bytes(k) for k in range(self.size) if k != self.rank)
            crossed = sum(cuts[k].stop - cuts[k].start for k in self._elsewhere)
            found = self._canonical_bytes[reduction] = parts * (numel - mine), theirs * mine, parts * crossed
        self.meter.count_bytes(*found)

    def _count_gather(self, numel: int) -> None:
        """Of an `all_gather`."""
        mine = self._width(numel)
        self.meter.count_vectors((self.size - 1) * mine, numel - mine, len(self._elsewhere) * mine)

    def _count_broadcast(self, numel: int, root: int) -> None:
        if self.rank == root:
            self.meter.count_vectors((self.size - 1) * numel, 0, len(self._elsewhere) * numel)
        else:
            self.meter.count_vectors(0, numel)

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
        own = dict(zip(reduction.nodes(self.rank), parts, strict=True))
        exchanges = [self._exchange_parts(reduction, wire, own) for wire in reduction.nodes_by_wire(self.rank)]

        def ordered() -> Gradient:
            found: dict[Node, Tensor] = {}
            for exchange in exchanges:
                found.update(exchange.wait())
            return TreeSum(reduction.num_virtual, found)

        return Handle(ordered)

    def sum_beside(
        self, reduction: Reduction, parts: Sequence[Tensor], total: Tensor, bucket: slice
    ) -> Callable[[Messages], None]:
        """The sum of one bucket of `parts`, of which `parts` gave the memory, as an exchange for a lane, which may be
        repeated. It is whole in that bucket of `total`, which `replicated` gave, when the exchange is over."""
        own = {node: part[bucket] for node, part in zip(reduction.nodes(self.rank), parts, strict=True)}
        return sum_beside(self.rank, replace(reduction, numel=bucket.stop - bucket.start), own, total[bucket])

    def _exchange_parts(
        self, reduction: Reduction, wire: WireName, own: dict[Node, Tensor]
    ) -> Handle[dict[Node, Tensor]]:
        """The parts of this worker's span that travel in these numbers, from all workers; own: all of this one's."""
        cuts = self.shares(reduction.numel)
        nodes = [reduction.nodes_by_wire(k)[wire] for k in range(self.size)]
        width, nothing = self._width(reduction.numel), torch.empty(0, dtype=DTYPES[wire], device=self.device)
        send = [torch.cat([nothing, *(own[node][cut] for node in nodes[self.rank])]) for cut in cuts]
        receive = [nothing.new_empty(len(theirs), width) for theirs in nodes]
        exchange = self.all_to_all(send, [rows.view(-1) for rows in receive])

        def found() -> dict[Node, Tensor]:
            exchange.wait()
            return {
                node: row for i, rows in zip(nodes, receive, strict=True) for node, row in zip(i, rows, strict=True)
            }

        return Handle(found)

    def all_gather(self, vector: Tensor, signal: int = 0) -> Handle[int]:
        """Complete a replicated vector of which each worker has written its own span. The result is as of `barrier`."""
        cuts = self.shares(vector.numel())
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
        cuts = self.shares(vector.numel())
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
            whole = [vector[cut] for cut in self.shares(vector.numel())]
            self.all_to_all([reduced.wait()] * self.size, whole).wait()

        return Handle(finish)

    def sum_bucket(self, part: Tensor, bucket: slice) -> Handle[ReducedSpan]:
        """Begin the sum over the workers of one bucket of `part` (P,), which `parts` gave, in the transport's own way.

        Handles are waited for in the order of the calls. The bucket may be written to again after `gather_buckets`.
        """
        reduced = self.reduce_scatter(part[bucket])
        mine = self.span(bucket.stop - bucket.start)
        return Handle(lambda: ReducedSpan(mine, TensorGradient(reduced.wait())))

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
