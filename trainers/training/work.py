"""What a worker trains next: minibatches with their place in the order, step by step."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainers.algorithms.base import Minibatch, Work
from trainers.data.batches import Batch, Dataset
from trainers.data.order import Order
from trainers.elastic.lease_table import Lease

Plan = Iterator[tuple[int, NDArray[np.int64]]]


@dataclass(frozen=True)
class GroupPosition:
    """Where an asynchronous worker stands among those that share its leases."""

    rank: int = 0
    """In the run: whose buffers it trains."""
    position: int = 0
    """In its group."""
    size: int = 1
    """Of its group."""


ALONE = GroupPosition()


def synchronous(
    dataset: Dataset, order: Order, ranks: range, epochs: int, start: tuple[int, int] = (0, 0), rest: int = 0
) -> Iterator[Work]:
    """The work of the worker that computes the virtual `ranks`, from (epoch, minibatch) `start` to the end of the
    run.

    rest: Minibatches of the epoch after the whole ones.
    """

    def steps() -> Iterator[tuple[int, int]]:
        for epoch in range(start[0], epochs + (rest > 0)):
            stop = order.minibatches if epoch < epochs else rest
            for first in range(start[1] if epoch == start[0] else 0, stop, order.num_virtual):
                yield epoch, first

    def plan() -> Plan:
        for epoch, first in steps():
            for rank in ranks:
                if order.size(first + rank):
                    yield epoch, order.examples(epoch, first + rank)

    batches = iter(dataset.batches(plan()))
    for epoch, first in steps():
        if first == 0:
            dataset.begin_epoch(epoch)
        indices = [(first + rank, rank) for rank in ranks]
        minibatches = tuple(Minibatch(i, rank, next(batches) if order.size(i) else None) for i, rank in indices)
        sizes = tuple(order.size(first + rank) for rank in range(order.num_virtual))
        ends = first + order.num_virtual >= order.minibatches
        yield Work(epoch, minibatches, sum(sizes), ends_epoch=ends, sizes=sizes)


def leased(dataset: Dataset, order: Order, leases: Iterable[Lease], place: GroupPosition = ALONE) -> Iterator[Work]:
    """The work of an asynchronous worker until there are no more leases.

    In a step the workers of its group compute neighbouring minibatches, one each; at the end of a lease some have none.
    """
    planned: deque[tuple[Lease, int]] = deque()  # lease, first minibatch of the step

    def plan() -> Plan:
        for lease in leases:
            for first in range(lease.first, lease.last + 1, place.size):
                planned.append((lease, first))
                if first + place.position <= lease.last:
                    yield lease.epoch, order.examples(lease.epoch, first + place.position)

    def work(batch: Batch | None) -> Work:
        lease, first = planned.popleft()
        last = min(first + place.size - 1, lease.last)
        whole = sum(order.size(index) for index in range(first, last + 1))
        minibatch = Minibatch(first + place.position, place.rank, batch)
        return Work(lease.epoch, (minibatch,), whole, last == lease.last, last - first + 1)

    for batch in dataset.batches(plan()):
        while planned[0][1] + place.position > planned[0][0].last:
            yield work(None)
        yield work(batch)
    while planned:
        yield work(None)
