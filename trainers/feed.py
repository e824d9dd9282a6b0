"""What a worker trains next: minibatches with their place in the order, step by step."""

from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from trainers.algorithms.base import Minibatch, Work
from trainers.data.batches import Dataset
from trainers.elastic.ledger import Lease
from trainers.elastic.order import Order

Plan = Iterator[tuple[int, NDArray[np.int64]]]


def synchronous(
    dataset: Dataset, order: Order, ranks: range, epochs: int, start: tuple[int, int] = (0, 0)
) -> Iterator[Work]:
    """The work of the worker that computes the virtual `ranks`, from (epoch, step) `start` to the end of the run."""

    def steps() -> Iterator[tuple[int, int]]:
        for epoch in range(start[0], epochs):
            for step in range(start[1] if epoch == start[0] else 0, order.steps):
                yield epoch, step

    def plan() -> Plan:
        for epoch, step in steps():
            for rank in ranks:
                index = step * order.num_virtual + rank
                if order.size(index):
                    yield epoch, order.examples(epoch, index)

    batches = iter(dataset.batches(plan()))
    for epoch, step in steps():
        indices = [(step * order.num_virtual + rank, rank) for rank in ranks]
        minibatches = tuple(Minibatch(i, rank, next(batches) if order.size(i) else None) for i, rank in indices)
        yield Work(epoch, minibatches, order.step_size(step))


def leased(dataset: Dataset, order: Order, leases: Iterable[Lease]) -> Iterator[Work]:
    """The work of an asynchronous worker: its leases, minibatch by minibatch, until there are no more."""
    planned: deque[tuple[Lease, int]] = deque()

    def plan() -> Plan:
        for lease in leases:
            for index in range(lease.first, lease.last + 1):
                planned.append((lease, index))
                yield lease.epoch, order.examples(lease.epoch, index)

    for batch in dataset.batches(plan()):
        lease, index = planned.popleft()
        yield Work(lease.epoch, (Minibatch(index, 0, batch),), len(batch.examples), ends_lease=index == lease.last)
