"""The canonical reduction, bucket by bucket, while the caller computes on."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from trainers.collectives.bucketed import gathered
from trainers.collectives.buckets import IN_FLIGHT, Bucket, ordered_bucket_bytes
from trainers.collectives.protocol import Collectives
from trainers.collectives.reduction import Reduction
from trainers.links.handle import Handle


class OrderedBuckets:
    """Sums each bucket over the virtual workers once this worker's parts of it are complete, c of them at a time. The
    sums have the bits of `reduce_canonical`, and are whole on every worker. All workers begin the same buckets in the
    same order."""

    def __init__(
        self,
        collectives: Collectives,
        reduction: Reduction,
        parts: Sequence[Tensor],
        total: Tensor,
        parameters: Sequence[Bucket],
    ) -> None:
        """
        Args:
            collectives: Of the workers.
            reduction: What is added.
            parts: (P,) each, which `Collectives.parts` gave; a bucket of them may be written to again after `finish`.
            total: (P,), which `Collectives.replicated` gave, where the sums come to lie.
            parameters: One by one, in the order of the vector.
        """
        self.total = total
        self.buckets = gathered(parameters, ordered_bucket_bytes(collectives.size))
        self.sums = {
            span.start: collectives.sum_beside(reduction, parts, total, span)
            for span in (bucket.span for bucket in self.buckets)
        }
        self.lanes = [collectives.lane(index) for index in range(IN_FLIGHT)]
        self.under_way: list[Handle[None]] = []

    def begin(self, bucket: slice) -> None:
        """Sum one bucket."""
        lane = self.lanes[len(self.under_way) % len(self.lanes)]
        self.under_way.append(lane.begin(self.sums[bucket.start]))

    def finish(self) -> None:
        """Stand still until all buckets that were begun are whole in `total`. Raises PeerLost."""
        handles, self.under_way = self.under_way, []
        for handle in handles:
            handle.wait()
