"""The ledger: every example once, whatever was leased, released and repeated."""

import random

import pytest

from trainers.elastic.ledger import Audit, Desk, Lease, Ledger
from trainers.elastic.order import Order

PRIME = 10_007


@pytest.mark.parametrize("seed", range(5))
def test_every_example_once_however_workers_come_and_go(seed: int) -> None:
    """Workers apply their leases in pieces; now and then one dies in the middle of one."""
    dice = random.Random(seed)
    order, epochs = Order(PRIME, 32, 4, seed), 2
    ledger = Ledger(order, epochs, lease_size=dice.randint(1, 9))
    at_work: dict[int, list[Lease]] = {worker: [] for worker in range(4)}
    while ledger.epochs_done() < epochs:
        worker = dice.choice(list(at_work))
        if dice.random() < 0.02:  # dies; another comes
            ledger.release(worker)
            del at_work[worker]
            at_work[max([worker, *at_work]) + 1] = []
            continue
        mine = at_work[worker]
        if not mine or dice.random() < 0.2:
            lease = ledger.lease(worker)
            if lease is not None:
                mine += pieces(lease, dice)
        if mine:
            ledger.applied(worker, mine.pop(0))
    for epoch in range(epochs):
        assert ledger.audit(epoch) == Audit(epoch, trained=PRIME, lost=0, duplicated=0)
    assert ledger.trained == epochs * PRIME
    assert ledger.lease(0) is None
    assert not any(ledger.open.values())


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
    ledger = Ledger(order, 1, lease_size=4)
    lease = ledger.lease(0)
    assert lease == Lease(0, 0, 3)
    ledger.applied(0, lease)
    ledger.applied(0, Lease(0, 2, 2))
    assert ledger.audit(0) == Audit(0, trained=40, lost=60, duplicated=10)
    assert ledger.epochs_done() == 0


def test_leases_come_in_order_and_a_released_one_first() -> None:
    ledger = Ledger(Order(100, 10, 1, 0), 2, lease_size=4)
    taken = [ledger.lease(worker) for worker in (0, 1, 0, 1)]
    assert taken == [Lease(0, 0, 3), Lease(0, 4, 7), Lease(0, 8, 9), Lease(1, 0, 3)]
    ledger.applied(0, Lease(0, 0, 1))
    ledger.release(0)
    assert [ledger.lease(2) for _ in range(4)] == [Lease(0, 2, 3), Lease(0, 8, 9), Lease(1, 4, 7), Lease(1, 8, 9)]
    assert ledger.lease(2) is None
    ledger.release(0)  # has nothing left
    assert ledger.lease(2) is None


def test_what_was_done_before_is_not_leased_again() -> None:
    done = [Lease(0, 0, 4), Lease(0, 6, 6)]
    ledger = Ledger(Order(95, 10, 1, 0), 1, lease_size=3, done=done)
    assert ledger.trained == 60
    assert [ledger.lease(0) for _ in range(3)] == [Lease(0, 5, 5), Lease(0, 7, 9), None]
    ledger.applied(0, Lease(0, 5, 5))
    ledger.applied(0, Lease(0, 7, 9))
    assert ledger.audit(0) == Audit(0, trained=95, lost=0, duplicated=0)
    assert ledger.epochs_done() == 1


def test_epochs_that_nobody_has_begun_cost_nothing() -> None:
    ledger = Ledger(Order(100, 10, 1, 0), 10**9, lease_size=10, done=[Lease(0, 0, 9), Lease(1, 0, 4)])
    assert ledger.epochs_done() == 1
    assert [ledger.lease(0) for _ in range(2)] == [Lease(1, 5, 9), Lease(2, 0, 9)]
    assert ledger.has_more()
    assert len(ledger.counts) <= 4


def test_a_run_that_was_finished_before_has_nothing_more() -> None:
    ledger = Ledger(Order(100, 10, 1, 0), 2, lease_size=4, done=[Lease(0, 0, 9), Lease(1, 0, 9)])
    assert not ledger.has_more()
    assert (ledger.lease(0), ledger.epochs_done()) == (None, 2)


def test_a_push_by_one_counts_for_the_lease_of_another() -> None:
    """A worker that was taken for dead had pushed after all: its lease is out again, and is then complete."""
    ledger = Ledger(Order(100, 10, 1, 0), 1, lease_size=10)
    lease = ledger.lease(0)
    assert lease is not None
    ledger.release(0)
    assert ledger.lease(1) == lease
    ledger.applied(0, lease)
    ledger.release(1)
    assert ledger.lease(2) is None
    assert ledger.audit(0) == Audit(0, trained=100, lost=0, duplicated=0)


def test_a_late_push_takes_its_minibatches_off_a_released_lease() -> None:
    ledger = Ledger(Order(100, 10, 1, 0), 1, lease_size=10)
    ledger.lease(0)
    ledger.release(0)
    ledger.applied(0, Lease(0, 3, 5))
    assert [ledger.lease(1) for _ in range(3)] == [Lease(0, 0, 2), Lease(0, 6, 9), None]


def test_a_group_gets_the_same_leases_in_the_same_order_also_when_the_desk_closes_between() -> None:
    """Worker 0 is ahead of its group's other one when the run is stopped: the other gets what 0 got, and no more."""
    ledger = Ledger(Order(100, 10, 1, 0), 2, lease_size=4, multiple=4)
    desk = Desk(ledger, [[0, 2], [1]])
    ahead = [desk.lease(0) for _ in range(2)]
    assert [desk.lease(1), *ahead] == [Lease(0, 8, 9), Lease(0, 0, 3), Lease(0, 4, 7)]
    assert desk.lease(1, closed=True) is None
    assert [desk.lease(2, closed=True) for _ in range(3)] == [*ahead, None]
    assert desk.lease(0, closed=True) is None
    desk.applied(0, Lease(0, 0, 3))
    assert ledger.open[0] == [Lease(0, 4, 7)]
    assert ledger.trained == 40


def test_a_group_comes_to_the_end_together() -> None:
    desk = Desk(Ledger(Order(100, 10, 1, 0), 1, lease_size=10, multiple=10), [[0, 1]])
    assert [desk.lease(0), desk.lease(0), desk.lease(1), desk.lease(1)] == [Lease(0, 0, 9), None, Lease(0, 0, 9), None]


@pytest.mark.parametrize("multiple", [1, 3])
def test_leases_become_shorter_so_that_nobody_holds_the_rest_of_the_run(multiple: int) -> None:
    """Four leases at hand are at most half of a worker's share of what is left when it asks for the first."""
    teams, minibatches = 3, 1_000
    ledger = Ledger(Order(minibatches, 1, 1, 0), 1, lease_size=63, multiple=multiple)
    desk, held = Desk(ledger, [[worker] for worker in range(teams)]), 0
    for asked in range(10_000):
        at_hand = [lease for _ in range(4) if (lease := desk.lease(asked % teams))]
        assert sum(map(len, at_hand)) <= max(4 * multiple, (minibatches - held) / teams / 2)
        assert all(len(lease) % multiple == 0 or lease.last == minibatches - 1 for lease in at_hand)
        held += sum(map(len, at_hand))
        if not at_hand:
            break
    assert held == minibatches
    assert asked < 100
