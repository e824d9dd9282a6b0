"""Dynamic local updates: how many steps of its own a worker's speed gives it."""

import pytest

from trainers.data.order import Order
from trainers.elastic.lease_table import Lease, LeaseDispatcher, LeaseTable
from trainers.elastic.paces import Paces


def test_steps_are_in_proportion_to_speed_rounded_down_and_one_at_least() -> None:
    paces = Paces(10)
    for worker, seconds in ((0, 1.0), (1, 2.5), (2, 3.0), (3, 40.0)):
        paces.add(worker, 10, 10 * seconds)
    assert [paces.steps_of(worker, range(4)) for worker in range(4)] == [10, 4, 3, 1]


def test_a_worker_that_is_not_known_has_all_steps_and_one_that_left_is_not_compared_with() -> None:
    paces = Paces(6)
    paces.add(0, 1, 1.0)
    paces.add(1, 1, 2.0)
    assert [paces.steps_of(2, (0, 1, 2)), paces.steps_of(1, (0, 1, 2)), paces.steps_of(1, (1, 2))] == [6, 3, 6]


def test_what_was_measured_last_counts_half() -> None:
    paces = Paces(8)
    paces.add(0, 1, 1.0)
    paces.add(1, 1, 1.0)
    assert paces.steps_of(1, (0, 1)) == 8
    paces.add(1, 4, 12.0)
    paces.add(1, 0, 0.0)
    assert paces.steps_of(1, (0, 1)) == 4


@pytest.mark.parametrize("slowness", [1.0, 3.0])
def test_leases_are_rounds_and_at_equal_speeds_all_are_whole(slowness: float) -> None:
    order = Order(290, 10, 2, 0)
    paces, dispatcher = Paces(6), LeaseDispatcher(LeaseTable(order, 1, 12, multiple=6), [[0], [1]])
    for worker, seconds in ((0, 1.0), (1, slowness)):
        paces.add(worker, 1, seconds)
    found = list[Lease]()
    while (lease := dispatcher.lease(len(found) % 2, longest=paces.steps_of(len(found) % 2, (0, 1)))) is not None:
        found.append(lease)
    assert [i for lease in found for i in lease.minibatches] == list(range(29))
    assert [len(lease) for lease in found] == ([6, 6, 6, 6, 5] if slowness == 1 else [6, 2, 6, 2, 6, 2, 5])
