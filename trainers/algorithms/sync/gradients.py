"""The sum of a worker's gradients in the canonical order."""

from __future__ import annotations

from torch import Tensor

from trainers.algorithms.base import Work
from trainers.collectives.reduction_tree import Node, sum_leaves
from trainers.models.replica import Loss, Replica


def sum_gradients(replica: Replica, params: Tensor, work: Work, node: Node, buffers: list[Tensor]) -> Loss:
    """Sum over the examples of the virtual ranks under `node`, in the canonical order, into `buffers[0]`.

    Returns the sum of their losses.
    """
    losses: list[Loss] = []
    batches = {m.virtual_rank: m.batch for m in work.minibatches}

    def leaf(rank: int, into: Tensor) -> None:
        batch = batches[rank]
        if batch is None:
            into.zero_()
        else:
            losses.append(replica.gradient(params, batch, into, virtual_rank=rank))

    sum_leaves(node, buffers, leaf)
    return sum(losses)
