"""A sum over the virtual workers that is made beside the caller, with the bits of `reduce_canonical`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from trainers.collectives.messages import Messages
from trainers.collectives.reduction import Reduction
from trainers.collectives.reduction_tree import Node, TreeSum
from trainers.links.encoding import DTYPES, bits_of
from trainers.optim.slices import spans


class SumBeside:
    """An exchange for a lane, which may be repeated. Everybody sends the others their spans of its subtrees' sums, adds
    up its own span in the order of the tree, and sends that to all."""

    def __init__(
        self,
        rank: int,
        reduction: Reduction,
        own: Mapping[Node, Tensor],
        made: Tensor,
        change: Callable[[Tensor], None] = lambda mine: None,
    ) -> None:
        """rank: of this worker. own: its subtrees' sums, (n,) each, in the numbers in which they travel. made: (n,)
        float32, where the sum comes to lie. change: is given this worker's span of the sum before the others get it."""
        cuts, nodes = spans(reduction.numel, reduction.size), [reduction.nodes(k) for k in range(reduction.size)]
        mine, nothing = cuts[rank], made[:0]
        self.made, self.change = made[mine], change
        parts = {node: part[mine] for node, part in own.items()}
        for node in (node for theirs in nodes for node in theirs if node not in own):
            parts[node] = made.new_empty(mine.stop - mine.start, dtype=DTYPES[reduction.wire_of(node)])
        self.sum = TreeSum(reduction.num_virtual, parts)
        self.scatter = []
        for index in range(max(map(len, nodes))):
            send = [own[nodes[rank][index]][cut] if index < len(nodes[rank]) else nothing for cut in cuts]
            receive = [parts[theirs[index]] if index < len(theirs) else nothing for theirs in nodes]
            self.scatter.append((send, receive))
        self.gather = [([self.made] * reduction.size, [made[cut] for cut in cuts])]

    def __call__(self, messages: Messages) -> None:
        """Make it."""
        _trade(messages, self.scatter)
        found = self.sum.piece(0, len(self.made), self.made)
        if found.data_ptr() != self.made.data_ptr():
            self.made.copy_(found)
        self.change(self.made)
        _trade(messages, self.gather)


def _trade(messages: Messages, rounds: list[tuple[list[Tensor], list[Tensor]]]) -> None:
    others = [k for k in range(messages.size) if k != messages.rank]
    away = [k for k in others if messages.nodes[k] != messages.nodes[messages.rank]]
    sent, crossed = (sum(send[k].nbytes for send, _ in rounds for k in to) for to in (others, away))
    messages.meter.count_bytes(sent, sum(receive[k].nbytes for _, receive in rounds for k in others), crossed)
    messages.trade([([*map(bits_of, send)], [*map(bits_of, receive)]) for send, receive in rounds])
