"""Sums over the virtual workers that are made beside the caller, with the bits of `reduce_canonical`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from trainers.collectives.messages import Messages
from trainers.collectives.reduction import Reduction
from trainers.collectives.reduction_tree import Node, TreeSum
from trainers.links.encoding import DTYPES, bits_of
from trainers.optim.slices import spans

Rounds = list[tuple[list[Tensor], list[Tensor]]]
"""What goes to each worker and what comes from each, at the same time (`Messages.trade`)."""


@dataclass
class OrderedSum:
    """An exchange for a lane, which may be repeated: a worker adds up its own span in the order of the tree."""

    sum: TreeSum
    """Of this worker's span."""
    made: Tensor
    """Where it comes to lie."""
    scatter: Rounds
    """The parts of all spans, before it is made."""
    gather: Rounds
    """All spans, after that."""
    change: Callable[[Tensor], None] = lambda mine: None
    """Is given this worker's span of the sum before the others get it."""

    def __call__(self, messages: Messages) -> None:
        """Make it."""
        _trade(messages, self.scatter)
        found = self.sum.piece(0, len(self.made), self.made)
        if found.data_ptr() != self.made.data_ptr():
            self.made.copy_(found)
        self.change(self.made)
        _trade(messages, self.gather)


def sum_beside(
    rank: int,
    reduction: Reduction,
    own: Mapping[Node, Tensor],
    made: Tensor,
    change: Callable[[Tensor], None] = lambda mine: None,
) -> OrderedSum:
    """Everybody sends the others their spans of its subtrees' sums, and its own span of the sum.

    Args:
        rank: Of this worker.
        reduction: What is added.
        own: This worker's subtrees' sums, (n,) each, in the numbers in which they travel.
        made: (n,) float32, where the sum comes to lie.
        change: Is given this worker's span of the sum before the others get it.
    """
    cuts, nodes = spans(reduction.numel, reduction.size), [reduction.nodes(k) for k in range(reduction.size)]
    mine, nothing = cuts[rank], made[:0]
    parts = {node: part[mine] for node, part in own.items()}
    for node in (node for theirs in nodes for node in theirs if node not in own):
        parts[node] = made.new_empty(mine.stop - mine.start, dtype=DTYPES[reduction.wire_of(node)])
    scatter = []
    for index in range(max(map(len, nodes))):
        send = [own[nodes[rank][index]][cut] if index < len(nodes[rank]) else nothing for cut in cuts]
        receive = [parts[theirs[index]] if index < len(theirs) else nothing for theirs in nodes]
        scatter.append((send, receive))
    gather = [([made[mine]] * reduction.size, [made[cut] for cut in cuts])]
    return OrderedSum(TreeSum(reduction.num_virtual, parts), made[mine], scatter, gather, change)


def _trade(messages: Messages, rounds: Rounds) -> None:
    others = [k for k in range(messages.size) if k != messages.rank]
    away = [k for k in others if messages.nodes[k] != messages.nodes[messages.rank]]
    sent, crossed = (sum(send[k].nbytes for send, _ in rounds for k in to) for to in (others, away))
    messages.meter.count_bytes(sent, sum(receive[k].nbytes for _, receive in rounds for k in others), crossed)
    messages.trade([([*map(bits_of, send)], [*map(bits_of, receive)]) for send, receive in rounds])
