"""Collectives of workers on several nodes, of which some share one: reduce inside the node, exchange between the nodes,
broadcast inside the node (paper 4, section 4.1).

Inside a node vectors lie in mapped files and are read where they lie; between nodes travel the sums of a node's
subtrees, by a process group of all workers. Otherwise than in the paper nobody speaks for the whole node: for each
worker elsewhere one of the node's, its carrier, sums what that worker reduces, sends it there, and takes in for the
node what comes from there. So all workers send and sum at the same time, and a node sends as little as one worker
would in its place.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from trainers.collectives.beside.node_sum import NodeSum
from trainers.collectives.group_forming import GroupConfig
from trainers.collectives.messages import Lane, Messages
from trainers.collectives.process_group import ProcessGroupCollectives
from trainers.collectives.protocol import Collectives
from trainers.collectives.reduction import Reduction
from trainers.collectives.reduction_tree import Node, TreeSum, sum_parts
from trainers.collectives.routes import Routes
from trainers.collectives.shared_memory import SharedMemoryCollectives, parts_name
from trainers.links.encoding import DTYPES, encoded
from trainers.links.handle import Handle, done
from trainers.links.meter import Meter
from trainers.links.names import WireName
from trainers.optim.gradient import Gradient


class HierarchicalCollectives(Collectives):
    """K workers on several nodes. `inside`: those of this worker's node, in the order of their ranks; `between`: all.

    What a worker has written into a replicated vector is there for those of its node, not for the others.
    """

    def __init__(self, inside: SharedMemoryCollectives, between: ProcessGroupCollectives) -> None:
        self.inside, self.between = inside, between
        self.rank, self.size, self.nodes = between.rank, between.size, between.nodes
        self.node = self.nodes[self.rank]
        self.routes = Routes(self.nodes)
        self.here = self.routes.on(self.node)
        self.carried, self.partners = self.routes.handled(self.rank)[1:], self.routes.partners(self.rank)
        self.sums: dict[Reduction, list[list[Node]]] = {}  # of each node
        self.sums_beside = between.sums_beside
        inside.meter = between.meter

    @cached_property
    def meter(self) -> Meter:
        return self.between.meter

    @property
    def waited_s(self) -> float:
        return self.inside.waited_s + self.between.waited_s

    @waited_s.setter
    def waited_s(self, seconds: float) -> None:
        self.inside.waited_s, self.between.waited_s = 0.0, seconds

    # -- memory ---------------------------------------------------------------------------------------------------

    def replicated(self, name: str, numel: int) -> Tensor:
        return self.inside.replicated(name, numel)

    def cut_at(self, places: Sequence[int]) -> None:
        super().cut_at(places)
        self.inside.cut_at(places)

    def persistent_span(self, numel: int) -> slice:
        return self.inside.span(numel)

    def complete(self) -> Handle[None]:
        return self.inside.complete()

    def parts(self, reduction: Reduction) -> list[Tensor]:
        return list(self._parts_of(reduction, self.rank).values())

    # -- calls ----------------------------------------------------------------------------------------------------

    def barrier(self, signal: int = 0) -> Handle[int]:
        return self.between.barrier(signal)

    def reduce_canonical(self, reduction: Reduction, parts: Sequence[Tensor]) -> Handle[Gradient]:
        """Waits in the call for those of the node; the exchange with the others goes on until `wait`."""
        self._count_reduced_here(reduction)
        self.inside.barrier().wait()
        own = {node: row for k in self.here for node, row in self._parts_of(reduction, k).items()}
        wires = {reduction.wire_of(node): None for sums in self._sums(reduction) for node in sums}
        exchanges = [self._exchange_sums(reduction, wire, own) for wire in wires]
        mine = self.span(reduction.numel)

        def ordered() -> Gradient:
            found = {node: row[mine] for node, row in own.items()}
            for exchange in exchanges:
                found.update(exchange.wait())
            return TreeSum(reduction.num_virtual, found)

        return Handle(ordered)

    def sum_beside(
        self, reduction: Reduction, parts: Sequence[Tensor], total: Tensor, bucket: slice
    ) -> Callable[[Messages], None]:
        own = {node: row[bucket] for k in self.here for node, row in self._parts_of(reduction, k).items()}
        of_bucket = replace(reduction, numel=bucket.stop - bucket.start)
        return NodeSum(self.rank, self.routes, of_bucket, own, total[bucket])

    def _exchange_sums(
        self, reduction: Reduction, wire: WireName, own: dict[Node, Tensor]
    ) -> Handle[dict[Node, Tensor]]:
        """The other nodes' sums of this worker's span that travel in these numbers; own: the parts of this node."""
        cuts, nothing = self.shares(reduction.numel), torch.empty(0, dtype=DTYPES[wire])
        sums = [[node for node in sums if reduction.wire_of(node) == wire] for sums in self._sums(reduction)]
        send, receive = [nothing] * self.size, [nothing] * self.size
        for k in self.carried:
            send[k] = torch.cat([nothing, *(sum_parts(n, own, cuts[k]).to(nothing.dtype) for n in sums[self.node])])
        for k in self.partners:
            receive[k] = nothing.new_empty(len(sums[self.nodes[k]]), self._width(reduction.numel))
        exchange = self.between.all_to_all(send, receive)

        def found() -> dict[Node, Tensor]:
            exchange.wait()
            rows = [zip(sums[self.nodes[k]], receive[k], strict=True) for k in self.partners]
            return dict(itertools.chain.from_iterable(rows))

        return Handle(found)

    def all_gather(self, vector: Tensor, signal: int = 0) -> Handle[int]:
        """Each span goes once to each other node, into the memory that all of that node see."""
        cuts, nothing = self.shares(vector.numel()), vector[:0]
        self.meter.count_vectors(*self.routes.laid_down_here(self.rank, cuts))
        send = [vector[cuts[self.rank]] if k in self.partners else nothing for k in range(self.size)]
        receive = [vector[cuts[k]] if k in self.carried else nothing for k in range(self.size)]
        meeting = self.inside.appoint()
        exchange, agreement = self.between.all_to_all(send, receive), self.between.barrier(signal)

        def finish() -> int:
            exchange.wait()
            self.inside.meet(meeting)
            return agreement.wait()

        return Handle(finish)

    def all_to_all(self, send: Sequence[Tensor], receive: Sequence[Tensor]) -> Handle[None]:
        """Through boxes to those of the node, by the process group to the others."""
        nothing = send[0].new_empty(0)  # not of the caller's memory, since it is also received into
        away = set(self._elsewhere)
        near = self.inside.all_to_all([send[k] for k in self.here], [receive[k] for k in self.here])
        far = self.between.all_to_all(
            [send[k] if k in away else nothing for k in range(self.size)],
            [receive[k] if k in away else nothing for k in range(self.size)],
        )

        def finish() -> None:
            near.wait()
            far.wait()

        return Handle(finish)

    def broadcast(self, vector: Tensor, root: int) -> Handle[None]:
        """To the root's carrier on each other node, and from there to all of that node. Over when the call returns."""
        nothing, entry = vector[:0], self.routes.carriers[self.node].get(root, root)
        send = [vector if self.rank == root and k in self.partners else nothing for k in range(self.size)]
        receive = [vector if k == root and k in self.carried else nothing for k in range(self.size)]
        self.between.all_to_all(send, receive).wait()
        self.inside.broadcast(vector, self.here.index(entry)).wait()
        return done(None)

    def subgroup(self, ranks: Sequence[int]) -> "HierarchicalCollectives | None":
        inside = self.inside.subgroup([self.here.index(k) for k in ranks if k in self.here])
        between = self.between.subgroup(ranks)
        if inside is None or between is None:
            return None
        return HierarchicalCollectives(inside, between)

    def lane(self, index: int) -> Lane:
        return self.between.lane(index)

    def close(self) -> None:
        self.inside.close()
        self.between.close()

    # -- accounts -------------------------------------------------------------------------------------------------

    def _parts_of(self, reduction: Reduction, rank: int) -> dict[Node, Tensor]:
        """What a worker of this node ships, where it lies."""
        nodes = reduction.nodes(rank)
        file = self.inside.file(parts_name(reduction, rank), len(nodes), reduction.numel)
        return {node: encoded(file.row(i), reduction.wire_of(node)) for i, node in enumerate(nodes)}

    def _sums(self, reduction: Reduction) -> list[list[Node]]:
        if reduction not in self.sums:
            self.sums[reduction] = [self.routes.sums(reduction, node) for node in range(max(self.nodes) + 1)]
        return self.sums[reduction]

    def _count_reduced_here(self, reduction: Reduction) -> None:
        """Of a reduction, what those of the node read of each other."""
        self.meter.count_bytes(*self.routes.read_here(self.rank, reduction, self.shares(reduction.numel)))


def join_hierarchical(
    config: GroupConfig, folder: Path, given_up: Callable[[], bool] = lambda: False
) -> HierarchicalCollectives:
    """Join a generation; folder: what the workers of this node share of it, and nobody else. given_up: Whether to wait
    for the others no longer.

    Raises:
        PeerLost: Not all came in time, or before they were given up.
    """
    here = Routes(config.nodes).on(config.nodes[config.rank])
    inside = SharedMemoryCollectives(folder, here.index(config.rank), len(here), given_up)
    try:
        return HierarchicalCollectives(inside, ProcessGroupCollectives(config, given_up))
    except BaseException:
        inside.close()
        raise
