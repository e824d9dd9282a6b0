"""Averages over the virtual workers that are made beside the caller, with the bits of `Average`."""

from collections.abc import Callable

import torch
from torch import Tensor

from trainers.collectives.ordered_sum import sum_beside
from trainers.collectives.protocol import Collectives
from trainers.collectives.reduction import Reduction
from trainers.collectives.reduction_tree import Node, Scratch, sum_leaves
from trainers.links.handle import Handle


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

        def mean(mine: Tensor) -> None:
            mine.div_(weight)

        exchange = sum_beside(self.collectives.rank, reduction, own, made, mean)
        over = self.lane.begin(exchange)

        def finish() -> Tensor:
            over.wait()
            return made

        return Handle(finish)
