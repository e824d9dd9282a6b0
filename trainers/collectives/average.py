"""An average over the virtual workers that has the same bits on any number of workers, and a way to bring what each of
them has of its own to one place."""

from collections.abc import Callable

import torch
from torch import Tensor

from trainers.collectives.protocol import Collectives
from trainers.collectives.reduction import Reduction
from trainers.collectives.reduction_tree import Node, Scratch, TreeSum, block, subtrees, sum_leaves
from trainers.optim.slices import spans
from trainers.optim.update import CHUNK
from trainers.spans import span

Pieces = Callable[[range, int], list[Tensor]]
"""Of a group, by its ranks, what goes to or comes from a worker."""


class Average:
    """A weighted average over the virtual workers, summed in the canonical order. The new one is written beside the old
    one, which the others may still be reading."""

    def __init__(self, collectives: Collectives, num_virtual: int, numel: int, name: str = "average") -> None:
        """name: no other average of these workers has it, since on shared memory it says where the vector lies."""
        self.collectives = collectives
        self.reduction = Reduction(num_virtual, collectives.size, numel)
        self.parts = collectives.parts(self.reduction)
        self.span = collectives.span(numel)
        self.scratch = Scratch(self.parts[0])
        self.versions = [collectives.replicated(f"{name}-{i}", numel) for i in (0, 1)]
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
        self.now(leaf, weight)
        self.clock += 1

    def now(self, leaf: Callable[[int, Tensor], None], weight: int) -> Tensor:
        """(numel,) what `update` would make the newest; only to be read, and until the next call."""
        following = self.versions[(self.clock + 1) % 2]
        for node, part in zip(self.reduction.nodes(self.collectives.rank), self.parts, strict=True):
            sum_leaves(node, self.scratch.under(part, node), leaf)
        with span("sums"):
            self._sum(following[self.span], weight)
        with span("gather"):
            self.collectives.all_gather(following).wait()
        return following

    def _sum(self, mine: Tensor, weight: int) -> None:
        """This worker's span of the new average."""
        total = self.collectives.reduce_canonical(self.reduction, self.parts).wait()
        chunk = CHUNK if mine.device.type == "cpu" else max(len(mine), 1)
        for start in range(0, len(mine), chunk):
            stop = min(start + chunk, len(mine))
            mine[start:stop].copy_(total.piece(start, stop)).div_(weight)


class GroupAverages:
    """The means within groups of neighbouring virtual workers, one for each group, each summed in the order of its own
    tree: the same bits on any number of workers. Of a group on one worker nothing travels."""

    def __init__(self, collectives: Collectives, num_virtual: int, group: int, numel: int) -> None:
        """group: virtual workers of each, a divisor of num_virtual. numel: of a vector."""
        self.collectives, self.group, self.numel = collectives, group, numel
        self.blocks = [block(num_virtual, k, collectives.size) for k in range(collectives.size)]
        self.groups = [range(first, first + group) for first in range(0, num_virtual, group)]
        self.travels = any(len(self._workers(ranks)) > 1 for ranks in self.groups)
        self.scratch = Scratch(torch.zeros(1, device=collectives.device).expand(numel))

    def of(self, leaf: Callable[[int, Tensor], None]) -> list[tuple[range, Tensor]]:
        """The ranks of each group that has a virtual worker here, and their mean (numel,); `leaf(rank, into)` writes
        the vector of one that is here. All workers call it."""
        me, like = self.collectives.rank, self.scratch.like
        parts = {ranks: self._parts(ranks, leaf) for ranks in self.groups if me in self._workers(ranks)}
        rows = {
            (ranks, k): [like.new_zeros(self._width(ranks, me)) for _ in self._nodes(ranks, k)]
            for ranks in parts
            for k in self._workers(ranks)
        }
        self._exchange(
            lambda ranks, k: [part[self._cut(ranks, k)] for part in parts[ranks]], lambda ranks, k: rows[ranks, k]
        )
        means = {ranks: like.new_zeros(self.numel) for ranks in parts}
        for ranks, mean in means.items():
            mine, nodes = self._cut(ranks, me), dict[Node, Tensor]()
            rows[ranks, me] = [part[mine] for part in parts[ranks]]
            for k in self._workers(ranks):
                nodes.update(zip(self._nodes(ranks, k), rows[ranks, k], strict=True))
            mean[mine].copy_(TreeSum(self.group, nodes).piece(0, self._width(ranks, me))).div_(self.group)
        self._exchange(
            lambda ranks, _: [means[ranks][self._cut(ranks, me)]],
            lambda ranks, k: [means[ranks][self._cut(ranks, k)]],
        )
        return list(means.items())

    def _parts(self, ranks: range, leaf: Callable[[int, Tensor], None]) -> list[Tensor]:
        """The sums of a group's subtrees that are here."""
        found = []
        for node in self._nodes(ranks, self.collectives.rank):
            part = torch.zeros(self.numel, device=self.collectives.device)
            sum_leaves(node, self.scratch.under(part, node), lambda i, into: leaf(ranks.start + i, into))
            found.append(part)
        return found

    def _exchange(self, sent: Pieces, received: Pieces) -> None:
        """Between every two workers of a group one vector each way, for all groups that they share."""
        if not self.travels:
            return
        me, nothing = self.collectives.rank, torch.zeros(0, device=self.collectives.device)

        def pieces(of: Pieces, k: int) -> list[Tensor]:
            both = [ranks for ranks in self.groups if {me, k} <= set(self._workers(ranks))]
            return [piece for ranks in both for piece in of(ranks, k)] if k != me else []

        others = range(self.collectives.size)
        send = [torch.cat([nothing, *pieces(sent, k)]) for k in others]
        targets = [pieces(received, k) for k in others]
        receive = [nothing.new_zeros(sum(map(len, into))) for into in targets]
        self.collectives.all_to_all(send, receive).wait()
        for came, into in zip(receive, targets, strict=True):
            for piece, values in zip(into, torch.split(came, [len(piece) for piece in into]), strict=True):
                piece.copy_(values)

    def _workers(self, ranks: range) -> list[int]:
        return [k for k, (lo, hi) in enumerate(self.blocks) if max(lo, ranks.start) < min(hi, ranks.stop)]

    def _nodes(self, ranks: range, k: int) -> list[Node]:
        """The subtrees of a group that worker k has, counted from the group's first."""
        lo, hi = self.blocks[k]
        return subtrees(self.group, max(lo, ranks.start) - ranks.start, min(hi, ranks.stop) - ranks.start)

    def _cut(self, ranks: range, k: int) -> slice:
        """What worker k sums of a group's vectors."""
        workers = self._workers(ranks)
        return spans(self.numel, len(workers))[workers.index(k)]

    def _width(self, ranks: range, k: int) -> int:
        cut = self._cut(ranks, k)
        return int(cut.stop - cut.start)


def gather_rows(collectives: Collectives, num_virtual: int, own: Tensor) -> Tensor:
    """(V, n) the rows of all virtual workers on worker 0, (0, n) on the others; `own`: (virtual workers here, n)."""
    blocks = [block(num_virtual, k, collectives.size) for k in range(collectives.size)]
    width, root = own.shape[1], collectives.rank == 0
    sizes = [(hi - lo) * width if root else 0 for lo, hi in blocks]
    rows, nothing = own.new_empty(sum(sizes)), own.new_empty(0)
    send = [own.flatten() if k == 0 else nothing for k in range(collectives.size)]
    collectives.all_to_all(send, list(torch.split(rows, sizes))).wait()
    return rows.view(-1, width)
