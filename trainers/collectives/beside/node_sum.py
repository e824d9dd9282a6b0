"""A sum over the virtual workers of several nodes that is made beside the caller, with the bits of `reduce_canonical`:
what `hierarchical` does, on a lane."""

from collections.abc import Mapping

import torch
from torch import Tensor

from trainers.collectives.messages import Messages
from trainers.collectives.ordered_sum import OrderedSum, Rounds
from trainers.collectives.reduction import Reduction
from trainers.collectives.reduction_tree import Node, TreeSum, sum_parts
from trainers.collectives.routes import Routes
from trainers.links.encoding import DTYPES
from trainers.optim.slices import spans


class NodeSum:
    """An exchange for a lane, which may be repeated. The workers of a node meet, for each reads what the others have
    laid down. Each sends what the node has for the workers that it carries, adds up its own span, and lays down for the
    node its own and those that it carries; then they meet again, and all of the sum is there."""

    def __init__(
        self, rank: int, routes: Routes, reduction: Reduction, own: Mapping[Node, Tensor], made: Tensor
    ) -> None:
        """
        Args:
            rank: Of this worker.
            routes: Who carries what.
            reduction: What is added.
            own: The subtrees' sums of all workers of the node, where they lie: (n,) each, in the numbers in which they
                travel.
            made: (n,) float32, where the sum comes to lie, for all of the node.
        """
        cuts, here = spans(reduction.numel, reduction.size), routes.on(routes.nodes[rank])
        self.rank, self.own = rank, own
        self.mates = [k for k in here if k != rank]
        self.joined: list[tuple[Node, slice, Tensor]] = []  # what is added up before it is sent, and into what
        parts = {node: part[cuts[rank]] for node, part in own.items()}
        scatter = self._scatter(routes, reduction, parts, cuts)
        carried, partners, nothing = routes.handled(rank)[1:], routes.partners(rank), made[:0]
        gather = (
            [made[cuts[rank]] if k in partners else nothing for k in range(reduction.size)],
            [made[cut] if k in carried else nothing for k, cut in enumerate(cuts)],
        )
        self.sum = OrderedSum(TreeSum(reduction.num_virtual, parts), made[cuts[rank]], scatter, [gather])
        parts_here, sums_here = routes.read_here(rank, reduction, cuts), routes.laid_down_here(rank, cuts)
        self.within = [a + made.element_size() * b for a, b in zip(parts_here, sums_here, strict=True)]  # bytes
        self.said, self.heard = torch.ones(1), torch.empty(reduction.size)

    def __call__(self, messages: Messages) -> None:
        """Make it."""
        messages.meter.count_bytes(*self.within)
        self._meet(messages)
        for node, cut, into in self.joined:
            sum_parts(node, self.own, cut, into)
        self.sum(messages)
        self._meet(messages)

    def _scatter(self, routes: Routes, reduction: Reduction, parts: dict[Node, Tensor], cuts: list[slice]) -> Rounds:
        """What goes to the workers that this one carries, and what comes for it, which is added to the `parts`."""
        sums = {node: routes.sums(reduction, node) for node in set(routes.nodes)}
        mine, theirs = sums[routes.nodes[self.rank]], {k: sums[routes.nodes[k]] for k in routes.partners(self.rank)}
        carried, width = routes.handled(self.rank)[1:], cuts[self.rank].stop - cuts[self.rank].start
        rounds, nothing = [], torch.empty(0)
        for index in range(max(map(len, sums.values()))):
            send, receive = [nothing] * reduction.size, [nothing] * reduction.size
            for k in carried if index < len(mine) else ():
                send[k] = self._sent(mine[index], cuts[k])
            for k in (k for k, nodes in theirs.items() if index < len(nodes)):
                node = theirs[k][index]
                receive[k] = parts[node] = torch.empty(width, dtype=DTYPES[reduction.wire_of(node)])
            rounds.append((send, receive))
        return rounds

    def _sent(self, node: Node, cut: slice) -> Tensor:
        """A subtree's sum over the span of another worker: where it lies, or where it will be made."""
        if node in self.own:
            return self.own[node][cut]
        into = torch.empty(cut.stop - cut.start)
        self.joined.append((node, cut, into))
        return into

    def _meet(self, messages: Messages) -> None:
        """Wait for the others of the node: what each has read and written before is done."""
        send, receive = [self.said[:0]] * messages.size, [self.said[:0]] * messages.size
        for k in self.mates:
            send[k], receive[k] = self.said, self.heard[k : k + 1]
        messages.trade([(send, receive)])
