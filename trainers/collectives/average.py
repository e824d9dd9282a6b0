"""An average over the virtual workers that has the same bits on any number of workers, and a way to bring what each of
them has of its own to one place."""

from collections.abc import Callable

import torch
from torch import Tensor

from trainers.collectives.protocol import Collectives
from trainers.collectives.reduction import Reduction
from trainers.collectives.reduction_tree import Scratch, block, sum_leaves
from trainers.optim.update import CHUNK
from trainers.spans import span


class Average:
    """A weighted average over the virtual workers, summed in the canonical order. The new one is written beside the old
    one, which the others may still be reading."""

    def __init__(self, collectives: Collectives, num_virtual: int, numel: int) -> None:
        self.collectives = collectives
        self.reduction = Reduction(num_virtual, collectives.size, numel)
        self.parts = collectives.parts(self.reduction)
        self.span = collectives.span(numel)
        self.scratch = Scratch(self.parts[0])
        self.versions = [collectives.replicated(f"average-{i}", numel) for i in (0, 1)]
        self.clock = 0

    @property
    def newest(self) -> Tensor:
        """(numel,) the average that was made last; only to be read."""
        return self.versions[self.clock % 2]

    def begin(self, first: Tensor) -> None:
        """The value (numel,) before the first average."""
        self.newest[self.span] = first[self.span].to(self.newest.device)
        self.collectives.all_gather(self.newest).wait()

    def update(self, leaf: Callable[[int, Tensor], None], weight: int) -> None:
        """newest <- sum / weight, where `leaf(rank, into)` writes what virtual worker `rank` adds to the sum."""
        for node, part in zip(self.reduction.nodes(self.collectives.rank), self.parts, strict=True):
            sum_leaves(node, self.scratch.under(part, node), leaf)
        with span("sums"):
            self._sum(weight)
        with span("gather"):
            self.collectives.all_gather(self.versions[(self.clock + 1) % 2]).wait()
        self.clock += 1

    def _sum(self, weight: int) -> None:
        """This worker's span of the new average."""
        total = self.collectives.reduce_canonical(self.reduction, self.parts).wait()
        mine = self.versions[(self.clock + 1) % 2][self.span]
        chunk = CHUNK if mine.device.type == "cpu" else max(len(mine), 1)
        for start in range(0, len(mine), chunk):
            stop = min(start + chunk, len(mine))
            mine[start:stop].copy_(total.piece(start, stop)).div_(weight)


def gather_rows(collectives: Collectives, num_virtual: int, own: Tensor) -> Tensor:
    """(V, n) the rows of all virtual workers on worker 0, (0, n) on the others; `own`: (virtual workers here, n)."""
    blocks = [block(num_virtual, k, collectives.size) for k in range(collectives.size)]
    width, root = own.shape[1], collectives.rank == 0
    sizes = [(hi - lo) * width if root else 0 for lo, hi in blocks]
    rows, nothing = own.new_empty(sum(sizes)), own.new_empty(0)
    send = [own.flatten() if k == 0 else nothing for k in range(collectives.size)]
    collectives.all_to_all(send, list(torch.split(rows, sizes))).wait()
    return rows.view(-1, width)
