"""Which workers go on, which hang, and when to give up: decided without a machine."""

import asyncio

from trainers.elastic.failure_policy import ATTEMPTS, FailurePolicy, GiveUp
from trainers.elastic.latest_version import latest_of
from trainers.runtime.actor_handles import WorkerHandle
from trainers.runtime.control.worker_group import WorkerGroup
from trainers.training.messages import GenerationEnd
from trainers.training.position import Position


def ended(number: int, epoch: int, step: int, has_version: bool = True) -> GenerationEnd:
    return GenerationEnd(number, Position(epoch, step), "worker 9 is gone", has_version, ("momentum",))


def test_the_newest_version_counts_also_if_only_one_has_it() -> None:
    newest = latest_of([ended(0, 1, 4), ended(3, 1, 5), ended(2, 1, 4)])
    assert newest is not None
    assert (newest.number, newest.position, newest.states) == (3, Position(1, 5), ("momentum",))


def test_the_first_step_of_an_epoch_is_newer_than_the_last_of_the_one_before() -> None:
    newest = latest_of([ended(0, 1, 28), ended(1, 2, 0)])
    assert newest is not None
    assert newest.number == 1


def test_a_worker_that_holds_nothing_is_not_asked() -> None:
    newest = latest_of([ended(0, 3, 0, has_version=False), ended(1, 2, 0)])
    assert newest is not None
    assert newest.number == 1
    assert latest_of([ended(0, 3, 0, has_version=False)]) is None
    assert latest_of([]) is None


def test_deaths_without_progress_are_counted_and_named() -> None:
    policy = FailurePolicy()
    policy.progressed(100)
    for _ in range(ATTEMPTS - 1):
        assert policy.failed("worker/0 died") is None
    policy.progressed(100)  # no further than before: it began again
    assert policy.failed("worker/0 died") == GiveUp(
        "3 processes were lost in a row before the run came any further: worker/0 died"
    )


def test_all_that_were_on_a_node_together_die_once() -> None:
    """Five workers on two nodes, of which one goes; then those that replace them on the other, twice."""
    policy = FailurePolicy()
    for number in (0, 2, 4):
        assert policy.failed(f"worker/{number} died", "a", number, num_started=5) is None
    assert policy.failed("worker/5 died", "b", 5, num_started=6) is None
    assert policy.failed("worker/3 died", "b", 3, num_started=6) is None
    decision = policy.failed("worker/6 died", "b", 6, num_started=7)
    assert decision is not None
    assert "6 processes were lost in a row" in decision.message


def test_the_shards_of_a_node_die_once_with_it_and_one_that_dies_again_and_again_is_counted() -> None:
    """Three shards were started when four workers had been, as many as when the node goes."""
    policy = FailurePolicy()
    for index in range(3):
        assert policy.failed(f"shard {index} died", "a", 4, 4, f"shard {index}") is None
    assert policy.failed("worker/1 died", "a", 1, 4) is None
    assert policy.attempts == 1
    assert policy.failed("shard 1 died", "b", 4, 4, "shard 1") is None
    assert policy.failed("shard 1 died", "b", 4, 4, "shard 1") is not None


def test_progress_forgives() -> None:
    policy = FailurePolicy()
    for examples in range(1, 20):
        assert policy.failed("worker/0 died") is None
        assert policy.failed("worker/1 died") is None
        policy.progressed(examples)


# -- which workers go on when one leaves ------------------------------------------------------------------------------


def group_of(*endings: GenerationEnd, leaving: int, size: int = 3) -> WorkerGroup:
    members = [WorkerHandle(number, f"worker/{number}", None) for number in range(size)]
    group = WorkerGroup(0, members, asyncio.Queue(), endings)
    group.leave(members[leaving])
    return group


def left(group: WorkerGroup) -> list[int]:
    """The workers that leave when the group changes."""
    return [worker.number for worker in group.change_members()]


def numbers(group: WorkerGroup) -> list[int]:
    return [worker.number for worker in group.members]


def test_the_version_of_a_worker_that_stays_is_taken() -> None:
    group = group_of(ended(0, 1, 5), ended(2, 1, 5), leaving=0)
    assert (left(group), numbers(group)) == ([0], [1, 2])
    assert group.latest is not None
    assert group.latest.number == 2


def test_a_worker_that_alone_has_the_newest_version_hands_it_on_before_it_leaves() -> None:
    group = group_of(ended(0, 1, 5), ended(1, 1, 4), ended(2, 1, 5, has_version=False), leaving=0)
    assert (left(group), numbers(group)) == ([], [1, 2, 0])
    assert group.latest is not None
    assert group.latest.number == 0
    # Nothing has happened in between: the group waits for more workers, say.
    assert (left(group), numbers(group)) == ([], [1, 2, 0])
    group.endings = [ended(0, 1, 5, has_version=False), ended(1, 1, 5)]
    assert (left(group), numbers(group)) == ([0], [1, 2])


def test_the_last_to_leave_waits_for_nobody() -> None:
    group = group_of(ended(0, 1, 5), leaving=0, size=1)
    assert (left(group), numbers(group)) == ([0], [])
