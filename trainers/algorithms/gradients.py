"""The sum of a worker's gradients in the canonical order."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from trainers.algorithms.base import Work
from trainers.collectives.reduction_tree import Node, sum_leaves
from trainers.links.encoding import round_to
from trainers.links.names import WireName
from trainers.models.objective import Total
from trainers.models.replica import Replica


def sum_gradients(
    replica: Replica, params: Tensor, work: Work, node: Node, buffers: list[Tensor], wire: WireName,
    see: Callable[[Tensor], None] = lambda gradient: None,
) -> list[Total]:  # fmt: skip
    """Sum over the examples of the virtual ranks under `node`, in the canonical order, into `buffers[0]`.

    wire: to what each of several ranks' gradients is rounded before they are added. One that is alone travels as such,
    and is rounded where it is laid down for that.
    see: is shown the gradient of each rank, in order, before it is rounded.

    Returns the loss of each rank, with its weight.
    """
    totals, batches = [], {m.virtual_rank: m.batch for m in work.minibatches}

    def leaf(rank: int, into: Tensor) -> None:
        batch = batches[rank]
        if batch is None:
            into.zero_()
            totals.append(Total())
        else:
            totals.append(replica.gradient(params, batch, into, virtual_rank=rank))
        see(into)
        round_to(into, wire if node[1] - node[0] > 1 else "float32")

    sum_leaves(node, buffers, leaf)
    return totals
