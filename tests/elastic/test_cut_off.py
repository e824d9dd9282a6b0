"""Groups that are cut off: whom nobody takes for lost, what is told once they are back, and what they cost if lost."""

from tests.elastic.test_heartbeat import Actor
from trainers.data.order import Order
from trainers.elastic.cut_off import CutOff
from trainers.elastic.heartbeat import DEAF_S
from trainers.elastic.lease_table import Lease, LeaseDispatcher, LeaseTable


def test_who_may_be_apart_for_long_is_not_deaf_before() -> None:
    actor = Actor()
    actor.answers(6)
    actor.is_silent(2 * DEAF_S)
    assert actor.fault is not None
    assert actor.history.fault(actor.now_s, 300.0, deaf_s=3 * DEAF_S) is None
    actor.is_silent(1.2 * DEAF_S)
    assert actor.history.fault(actor.now_s, 300.0, deaf_s=3 * DEAF_S) is not None


def test_steps_apart_are_told_once_when_the_worker_is_back() -> None:
    """Also where what it reported before the cut comes after what it reported in it."""
    cut_off = CutOff()
    reports = [(0, 4), (2, 5), (0, 4), (0, 5), (5, 5), (1, 5), (0, 6), (0, 7), (3, 8), (0, 9)]
    assert [cut_off.add(7, *report) for report in reports] == [0, 0, 0, 0, 0, 0, 8, 0, 0, 3]
    assert cut_off.add(8, 0, 9) == 0


def test_only_a_group_that_lost_a_worker_has_lost_what_it_did_not_send() -> None:
    """In minibatches of ten examples, the last of five; what was applied is not lost."""
    dispatcher = LeaseDispatcher(LeaseTable(Order(95, 10, 1, 0), 1, lease_size=6), [(3, 4), (5,)])
    assert (dispatcher.lease(3, longest=6), dispatcher.lease(5, longest=6)) == (Lease(0, 0, 5), Lease(0, 6, 9))
    dispatcher.applied(3, Lease(0, 0, 1))
    assert (dispatcher.lost_of(0, [3, 4]), dispatcher.lost_of(0, [3, 4, 8])) == (0, 0)
    assert (dispatcher.lost_of(0, [4]), dispatcher.lost_of(1, [])) == (40, 35)
    assert dispatcher.lost_of(9, []) == 0
    assert [dispatcher.is_first(worker) for worker in (3, 4, 5, 9)] == [True, False, True, False]
