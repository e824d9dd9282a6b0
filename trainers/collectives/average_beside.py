"""Averages over the virtual workers that are made beside the caller, with the bits of `Average`."""

from collections.abc import Callable

import torch
from torch import Tensor

from trainers.collectives.messages import Messages
from trainers.collectives.protocol import Collectives
from trainers.collectives.reduction import Reduction
from trainers.collectives.reduction_tree import Node, Scratch, TreeSum, sum_leaves
from trainers.links.handle import Handle
from trainers.optim.slices import spans


class AverageBeside:
    """On a lane of its own, on which they follow each other. All workers begin the same ones in the same order."""

    def __init__(self, collectives: Collectives, num_virtual: int) -> None:
        self.collectives, self.num_virtual = collectives, num_virtual
        self.lane = collectives.lane(0)

    def begin(self, numel: int, leaf: Callable[[int, Tensor], None], weight: int) -> Handle[Tensor]:
        """sum / weight, (numel,), where `leaf(rank, into)` writes what virtual worker `rank` adds to the sum. All that
        this worker adds is taken before the call returns; what `wait` gives is the caller's.

        Raises:
            PeerLost: From `wait`: a worker is gone.
        """
        reduction = Reduction(self.num_virtual, self.collectives.size, numel)
        made = torch.zeros(numel, device=self.collectives.device)
        scratch, own = Scratch(made), dict[Node, Tensor]()
        for node in reduction.nodes(self.collectives.rank):
            own[node] = torch.zeros_like(made)
            sum_leaves(node, scratch.under(own[node], node), leaf)
        over = self.lane.begin(lambda messages: _sum(messages, reduction, own, weight, made))

        def finish() -> Tensor:
            over.wait()
            return made

        return Handle(finish)


def _sum(messages: Messages, reduction: Reduction, own: dict[Node, Tensor], weight: int, made: Tensor) -> None:
    """Everybody sends the others their spans of its subtrees' sums, adds up its own span in the order of the tree, and
    sends that to all; own: this worker's sums (numel,). One vector to each peer in each of the two steps."""
    cuts = spans(reduction.numel, messages.size)
    mine = cuts[messages.rank]
    others = [k for k in range(messages.size) if k != messages.rank]
    rows = {k: made.new_empty(len(reduction.nodes(k)), mine.stop - mine.start) for k in others}
    messages.step(
        [(torch.cat([part[cuts[k]] for part in own.values()]), k) for k in others],
        [(rows[k].view(-1), k) for k in others],
    )
    found = {node: part[mine] for node, part in own.items()}
    for k in others:
        found.update(zip(reduction.nodes(k), rows[k], strict=True))
    made[mine].copy_(TreeSum(reduction.num_virtual, found).piece(0, mine.stop - mine.start)).div_(weight)
    messages.step([(made[mine], k) for k in others], [(made[cuts[k]], k) for k in others])
