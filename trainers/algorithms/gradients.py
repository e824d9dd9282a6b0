"""The sum of a worker's gradients in the canonical order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from trainers.algorithms.base import Work
from trainers.collectives.bucketed import BucketScheduler
from trainers.collectives.buckets import Bucket
from trainers.collectives.reduction_tree import Node, add_last, sum_leaves
from trainers.links.encoding import round_to
from trainers.links.names import WireName
from trainers.models.objective import Total
from trainers.models.replica import Replica


def sum_gradients(
    replica: Replica, params: Tensor, work: Work, node: Node, buffers: list[Tensor], wire: WireName,
    see: Callable[[Tensor], None] = lambda gradient: None,
    buckets: Sequence[Bucket] = (), leave: Callable[[slice], None] = lambda bucket: None,
) -> list[Total]:  # fmt: skip
    """Sum over the examples of the virtual ranks under `node`, in the canonical order, into `buffers[0]`.

    wire: to what each of several ranks' gradients is rounded before they are added. One that is alone travels as such,
    and is rounded where it is laid down for that.
    see: is shown the gradient of each rank, in order, before it is rounded; where there are buckets, the last is not.
    buckets: of the vector; `leave` is told each once the sum of it is complete, the last one first, while the backward
    pass of the last rank goes on.

    Returns the loss of each rank, with its weight.
    """
    totals, batches = [], {m.virtual_rank: m.batch for m in work.minibatches}
    rounded: WireName = wire if node[1] - node[0] > 1 else "float32"

    def leaf(rank: int, into: Tensor) -> None:
        if buckets and rank == node[1] - 1:
            scheduler = BucketScheduler(buckets, lambda bucket: complete(into, bucket))
            totals.append(compute(rank, into, scheduler.ready))
            if batches[rank] is None:
                scheduler.rest()
        else:
            totals.append(compute(rank, into))
            see(into)
            round_to(into, rounded)

    def compute(rank: int, into: Tensor, on_ready: Callable[[str], None] | None = None) -> Total:
        batch = batches[rank]
        if batch is None:
            into.zero_()
            return Total()
        return replica.gradient(params, batch, into, virtual_rank=rank, on_ready=on_ready)

    def complete(last: Tensor, bucket: slice) -> None:
        round_to(last[bucket], rounded)
        add_last(node, buffers, bucket)
        leave(bucket)

    sum_leaves(node, buffers, leaf, adds_last=not buckets)
    return totals
