"""The lease table: every example once, whatever was leased, released and repeated."""

import random

import pytest

from trainers.data.order import Order
from trainers.elastic.lease_table import Audit, Lease, LeaseDispatcher, LeaseTable

PRIME = 10_007


@pytest.mark.parametrize("seed", range(5))
def test_every_example_once_however_workers_come_and_go(seed: int) -> None:
    """Workers apply their leases in pieces; now and then one dies in the middle of one."""
    dice = random.Random(seed)
    order, epochs = Order(PRIME, 32, 4, seed), 2
    table = LeaseTable(order, epochs, lease_size=dice.randint(1, 9))
    at_work: dict[int, list[Lease]] = {worker: [] for worker in range(4)}
    while table.epochs_done() < epochs:
        worker = dice.choice(list(at_work))
        if dice.random() < 0.02:  # dies; another comes
            table.release(worker)
            del at_work[worker]
            at_work[max([worker, *at_work]) + 1] = []
            continue
        mine = at_work[worker]
        if not mine or dice.random() < 0.2:
            lease = table.lease(worker)
            if lease is not None:
                mine += pieces(lease, dice)
        if mine:
            table.applied(worker, mine.pop(0))
    for epoch in range(epochs):
        assert table.audit(epoch) == Audit(epoch, trained=PRIME, lost=0, duplicated=0)
    assert table.trained == epochs * PRIME
    assert table.lease(0) is None
    assert not any(table.open.values())


def pieces(lease: Lease, dice: random.Random) -> list[Lease]:
    """The pushes that cover a lease."""
    found, first = [], lease.first
    while first <= lease.last:
        last = min(first + dice.randrange(3), lease.last)
        found.append(Lease(lease.epoch, first, last))
        first = last + 1
    return found


def test_the_audit_can_find_fault() -> None:
    order = Order(100, 10, 1, 0)
    table = LeaseTable(order, 1, lease_size=4)
    lease = table.lease(0)
    assert lease == Lease(0, 0, 3)
    table.applied(0, lease)
    table.applied(0, Lease(0, 2, 2))
    assert table.audit(0) == Audit(0, trained=40, lost=60, duplicated=10)
    assert table.epochs_done() == 0


def test_leases_come_in_order_and_a_released_one_first() -> None:
    table = LeaseTable(Order(100, 10, 1, 0), 2, lease_size=4)
    taken = [table.lease(worker) for worker in (0, 1, 0, 1)]
    assert taken == [Lease(0, 0, 3), Lease(0, 4, 7), Lease(0, 8, 9), Lease(1, 0, 3)]
    table.applied(0, Lease(0, 0, 1))
    table.release(0)
    assert [table.lease(2) for _ in range(4)] == [Lease(0, 2, 3), Lease(0, 8, 9), Lease(1, 4, 7), Lease(1, 8, 9)]
    assert table.lease(2) is None
    table.release(0)  # has nothing left
    assert table.lease(2) is None


def test_what_was_done_before_is_not_leased_again() -> None:
    done = [Lease(0, 0, 4), Lease(0, 6, 6)]
    table = LeaseTable(Order(95, 10, 1, 0), 1, lease_size=3, done=done)
    assert table.trained == 60
    assert [table.lease(0) for _ in range(3)] == [Lease(0, 5, 5), Lease(0, 7, 9), None]
    table.applied(0, Lease(0, 5, 5))
    table.applied(0, Lease(0, 7, 9))
    assert table.audit(0) == Audit(0, trained=95, lost=0, duplicated=0)
    assert table.epochs_done() == 1


def test_epochs_that_nobody_has_begun_cost_nothing() -> None:
    table = LeaseTable(Order(100, 10, 1, 0), 10**9, lease_size=10, done=[Lease(0, 0, 9), Lease(1, 0, 4)])
    assert table.epochs_done() == 1
    assert [table.lease(0) for _ in range(2)] == [Lease(1, 5, 9), Lease(2, 0, 9)]
    assert table.has_more()
    assert len(table.counts) <= 4


def test_a_run_that_was_finished_before_has_nothing_more() -> None:
    table = LeaseTable(Order(100, 10, 1, 0), 2, lease_size=4, done=[Lease(0, 0, 9), Lease(1, 0, 9)])
    assert not table.has_more()
    assert (table.lease(0), table.epochs_done()) == (None, 2)


def test_a_push_by_one_counts_for_the_lease_of_another() -> None:
    """A worker that was taken for dead had pushed after all: its lease is out again, and is then complete."""
    table = LeaseTable(Order(100, 10, 1, 0), 1, lease_size=10)
    lease = table.lease(0)
    assert lease is not None
    table.release(0)
    assert table.lease(1) == lease
    table.applied(0, lease)
    table.release(1)
    assert table.lease(2) is None
    assert table.audit(0) == Audit(0, trained=100, lost=0, duplicated=0)


def test_a_late_push_takes_its_minibatches_off_a_released_lease() -> None:
    table = LeaseTable(Order(100, 10, 1, 0), 1, lease_size=10)
    table.lease(0)
    table.release(0)
    table.applied(0, Lease(0, 3, 5))
    assert [table.lease(1) for _ in range(3)] == [Lease(0, 0, 2), Lease(0, 6, 9), None]


def test_a_group_gets_the_same_leases_in_the_same_order_also_when_the_desk_closes_between() -> None:
    """Worker 0 is ahead of its group's other one when the run is stopped: the other gets what 0 got, and no more."""
    table = LeaseTable(Order(100, 10, 1, 0), 2, lease_size=4, multiple=4)
    dispatcher = LeaseDispatcher(table, [[0, 2], [1]])
    ahead = [dispatcher.lease(0) for _ in range(2)]
    assert [dispatcher.lease(1), *ahead] == [Lease(0, 8, 9), Lease(0, 0, 3), Lease(0, 4, 7)]
    assert dispatcher.lease(1, closed=True) is None
    assert [dispatcher.lease(2, closed=True) for _ in range(3)] == [*ahead, None]
    assert dispatcher.lease(0, closed=True) is None
    dispatcher.applied(0, Lease(0, 0, 3))
    assert table.open[0] == [Lease(0, 4, 7)]
    assert table.trained == 40


def test_a_group_comes_to_the_end_together() -> None:
    dispatcher = LeaseDispatcher(LeaseTable(Order(100, 10, 1, 0), 1, lease_size=10, multiple=10), [[0, 1]])
    assert [dispatcher.lease(0), dispatcher.lease(0), dispatcher.lease(1), dispatcher.lease(1)] == [
        Lease(0, 0, 9),
        None,
        Lease(0, 0, 9),
        None,
    ]


@pytest.mark.parametrize("multiple", [1, 3])
def test_leases_become_shorter_so_that_nobody_holds_the_rest_of_the_run(multiple: int) -> None:
    """Four leases at hand are at most half of a worker's share of what is left when it asks for the first."""
    num_groups, minibatches = 3, 1_000
    table = LeaseTable(Order(minibatches, 1, 1, 0), 1, lease_size=63, multiple=multiple)
    dispatcher, held = LeaseDispatcher(table, [[worker] for worker in range(num_groups)]), 0
    for asked in range(10_000):
        at_hand = [lease for _ in range(4) if (lease := dispatcher.lease(asked % num_groups))]
        assert sum(map(len, at_hand)) <= max(4 * multiple, (minibatches - held) / num_groups / 2)
        assert all(len(lease) % multiple == 0 or lease.last == minibatches - 1 for lease in at_hand)
        held += sum(map(len, at_hand))
        if not at_hand:
            break
    assert held == minibatches
    assert asked < 100
