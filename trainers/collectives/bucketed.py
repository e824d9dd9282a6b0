"""How the buckets of a vector are summed over the workers while the caller computes on, several at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trainers.collectives.all_reduce.choice import choose
from trainers.collectives.buckets import Bucket
from trainers.collectives.messages import Messages
from trainers.collectives.protocol import Collectives
from trainers.collectives.reduction import ReducedSpan, Reduction
from trainers.links.handle import Handle
from trainers.optim.gradient import TensorGradient

Update = Callable[[slice, ReducedSpan], None]
"""Told a bucket, and this worker's share of the sum over it; writes the new parameters of this share."""


class BucketReducer(ABC):
    """Sums `part` (P,), bucket by bucket. All workers make the same calls in the same order.

    A worker updates its share of each bucket and gets the rest from the others: each update is computed once, its state
    is needed in one place, and as many bytes move as if all had summed everything.
    """

    survives_worker: bool = False
    """Whether what a worker writes into a replicated vector is there for the others when it has died."""
    runs_beside: bool = False
    """Whether buckets become complete beside the caller, so that it need not stand still for all of them at once."""

    part: Tensor
    """(P,) where this worker lays down what it adds to the sum. A bucket may be written to again after `finish`."""

    @abstractmethod
    def replicated(self, name: str, first: Tensor) -> Tensor:
        """A vector (P,) that begins as `first` and that all workers see alike once it is gathered."""

    @abstractmethod
    def begin(self, bucket: slice, update: Update, params: Tensor) -> None:
        """Begin one bucket: sum it, `update` this worker's share, gather the replicated vector `params` (P,)."""

    @abstractmethod
    def finish(self, params: Tensor) -> None:
        """Stand still until all buckets that were begun are complete in `params`."""

    def complete(self, bucket: slice) -> None:
        """Stand still until this bucket is complete, of those that were begun since `finish`. Only where they become so
        beside the caller."""
        raise NotImplementedError

    @abstractmethod
    def gather(self, vector: Tensor, buckets: Sequence[slice]) -> None:
        """Complete a replicated vector (P,) of which each worker has written its shares."""


class MessageBucketReducer(BucketReducer):
    """By an all-reduce algorithm over point-to-point messages, on c lanes in turn."""

    runs_beside = True

    def __init__(self, collectives: Collectives, like: Tensor, algorithm: str, in_flight: int) -> None:
        self.algorithm = algorithm
        self.nodes = collectives.nodes
        self.part = torch.zeros_like(like)
        self.lanes = [collectives.lane(index) for index in range(in_flight)]
        self.under_way: dict[int, Handle[None]] = {}  # where a bucket begins -> its exchange

    def replicated(self, name: str, first: Tensor) -> Tensor:
        return first.clone()  # also on shared memory: what arrives by message is one's own

    def begin(self, bucket: slice, update: Update, params: Tensor) -> None:
        vector = self.part[bucket]
        all_reduce = choose(self.algorithm, self.nodes, vector.numel())

        def exchange(messages: Messages) -> None:
            mine = all_reduce.reduce_scatter(messages, vector)
            update(bucket, ReducedSpan(mine, TensorGradient(vector[mine])))
            all_reduce.all_gather(messages, params[bucket])

        self._run(bucket, exchange)

    def finish(self, params: Tensor) -> None:
        handles, self.under_way = self.under_way, {}
        for handle in handles.values():
            handle.wait()

    def complete(self, bucket: slice) -> None:
        self.under_way[bucket.start].wait()

    def gather(self, vector: Tensor, buckets: Sequence[slice]) -> None:
        for bucket in buckets:
            all_reduce = choose(self.algorithm, self.nodes, bucket.stop - bucket.start)
            self._run(bucket, lambda messages, a=all_reduce, b=bucket: a.all_gather(messages, vector[b]))  # type: ignore[misc]
        self.finish(vector)

    def _run(self, bucket: slice, exchange: Callable[[Messages], None]) -> None:
        lane = self.lanes[len(self.under_way) % len(self.lanes)]
        self.under_way[bucket.start] = lane.begin(exchange)


class NativeBucketReducer(BucketReducer):
    """In the transport's own way: shared memory is read where it lies, NCCL and gloo have an all-reduce.

    Nothing runs beside the caller but what the library does itself. Bucket n + c begins once bucket n is summed.
    """

    def __init__(self, collectives: Collectives, numel: int, in_flight: int) -> None:
        self.collectives, self.in_flight = collectives, in_flight
        self.survives_worker = collectives.survives_worker
        (self.part,) = collectives.parts(Reduction(collectives.size, collectives.size, numel))
        self.under_way: deque[tuple[slice, Update, Handle[ReducedSpan]]] = deque()
        self.summed: list[slice] = []

    def replicated(self, name: str, first: Tensor) -> Tensor:
        vector = self.collectives.replicated(name, len(first))
        mine = self.collectives.span(len(first))
        vector[mine] = first[mine]
        self.collectives.all_gather(vector).wait()
        return vector

    def begin(self, bucket: slice, update: Update, params: Tensor) -> None:
        if len(self.under_way) == self.in_flight:
            self._finish_oldest()
        self.under_way.append((bucket, update, self.collectives.sum_bucket(self.part, bucket)))

    def finish(self, params: Tensor) -> None:
        while self.under_way:
            self._finish_oldest()
        buckets, self.summed = self.summed, []
        self.collectives.gather_buckets(params, buckets)

    def gather(self, vector: Tensor, buckets: Sequence[slice]) -> None:
        self.collectives.gather_buckets(vector, buckets)

    def _finish_oldest(self) -> None:
        bucket, update, summed = self.under_way.popleft()
        update(bucket, summed.wait())
        self.summed.append(bucket)


def build_bucket_reducer(collectives: Collectives, like: Tensor, algorithm: str, in_flight: int) -> BucketReducer:
    """The way that a spec's `all_reduce` names, for vectors `like` (P,); `auto` takes the transport's own where that is
    the fastest."""
    if algorithm == "library" or (algorithm == "auto" and collectives.sums_by_itself):
        return NativeBucketReducer(collectives, len(like), in_flight)
    return MessageBucketReducer(collectives, like, algorithm, in_flight)


def gathered(parameters: Sequence[Bucket], least_bytes: int) -> list[Bucket]:
    """Neighbours put together into buckets of at least so many bytes, from the back; in the order of the vector.

    The one in front may be smaller: its gradients are complete last, and nothing that was complete before waits for it.
    """
    found: list[Bucket] = []
    for parameter in reversed(parameters):
        if found and 4 * (found[-1].span.stop - found[-1].span.start) < least_bytes:
            behind = found.pop()
            found.append(Bucket(slice(parameter.span.start, behind.span.stop), parameter.names + behind.names))
        else:
            found.append(parameter)
    return found[::-1]


class BucketScheduler:
    """Lets buckets leave in one order on every worker: from the back of the vector, as back-propagation completes them.

    A bucket that is complete before those behind it waits for them. Workers that summed in different orders would wait
    for each other for ever (paper 4, section 4.2).
    """

    def __init__(self, buckets: Sequence[Bucket], leave: Callable[[slice], None]) -> None:
        self.leave = leave
        self.staying = [(bucket.span, set(bucket.names)) for bucket in buckets]  # with what is still missing of it
        self.missing = {name: names for _, names in self.staying for name in names}

    def ready(self, name: str) -> None:
        """A parameter's gradient is complete."""
        self.missing[name].remove(name)
        while self.staying and not self.staying[-1][1]:
            self.leave(self.staying.pop()[0])

    def rest(self) -> None:
        """All gradients are."""
        while self.staying:
            self.leave(self.staying.pop()[0])
