"""The sum of a worker's gradients in the canonical order."""

from __future__ import annotations

from torch import Tensor

from trainers.algorithms.base import Work
from trainers.collectives.reduction_tree import Node, sum_leaves
from trainers.models.objective import Total
from trainers.models.replica import Replica


def sum_gradients(replica: Replica, params: Tensor, work: Work, node: Node, buffers: list[Tensor]) -> list[Total]:
    """Sum over the examples of the virtual ranks under `node`, in the canonical order, into `buffers[0]`.

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

    sum_leaves(node, buffers, leaf)
    return totals
