"""How many workers to start and which to let go: decided without starting any."""

import asyncio
from typing import Any

import pytest

from tests.runtime.control.fakes import prepared, small
from trainers.errors import SpecRejected
from trainers.runtime.actor_handles import WorkerHandle
from trainers.runtime.control.worker_group import WorkerGroup
from trainers.runtime.control.worker_scaler import ScalingDecision, WorkerScaler

NOWHERE = frozenset[str]()


def scaler(count: int, is_trial: bool = False, **fields: Any) -> WorkerScaler:
    """Of a run that wants so many workers."""
    found = WorkerScaler(small(**fields), is_trial)
    found.want(count)
    return found


def workers(*nodes: str) -> list[WorkerHandle]:
    """A worker on each node; one that is not ready yet where that is empty."""
    return [
        WorkerHandle(number, f"worker/{number}", None, prepared=prepared(number, node) if node else None)
        for number, node in enumerate(nodes)
    ]


def test_as_many_are_started_as_are_missing() -> None:
    assert scaler(4).decide(workers("a", "a"), 0, NOWHERE) == ScalingDecision(2)
    assert scaler(4).decide(workers("a", ""), 1, NOWHERE) == ScalingDecision(1), "one is not ready, one has no room yet"
    assert scaler(2).decide(workers("a", "a"), 0, NOWHERE) == ScalingDecision(0)


def test_the_youngest_are_let_go_ready_or_not() -> None:
    present = workers("a", "a", "a", "")
    assert scaler(2).decide(present, 0, NOWHERE) == ScalingDecision(0, tuple(present[2:]))
    present[2].is_leaving = present[3].is_leaving = True
    assert scaler(2).decide(present, 0, NOWHERE) == ScalingDecision(0), "they were told already"
    assert scaler(4).decide(present, 0, NOWHERE) == ScalingDecision(2), "they do not come back"


def test_those_on_nodes_that_are_drained_are_replaced() -> None:
    present = workers("a", "b", "", "b")
    assert scaler(4).decide(present, 0, frozenset("b")) == ScalingDecision(2, (present[1], present[3]))
    assert scaler(1).decide(present, 0, frozenset("b")) == ScalingDecision(0, (present[1], present[3], present[2]))


def test_a_trial_gives_up_workers_and_starts_none() -> None:
    present = workers("a", "b")
    assert scaler(4, is_trial=True).decide(present, 0, frozenset("b")) == ScalingDecision(0, (present[1],))
    with pytest.raises(SpecRejected, match="keeps its size"):
        scaler(2, is_trial=True).check(3)


def test_a_run_that_follows_the_cluster_wants_all_it_may_have() -> None:
    assert WorkerScaler(small(elastic={"follow_cluster": True}), is_trial=False).wanted == 4


def test_a_newcomer_joins_the_group_that_is_short_of_one() -> None:
    groups = [WorkerGroup(number, workers("a", "a"), asyncio.Queue()) for number in range(2)]
    mixed = scaler(4, algorithm="mixed", workers=4)
    assert mixed.group_for_newcomer(groups) is None
    del groups[1].members[0]
    assert mixed.group_for_newcomer(groups) is groups[1]
    assert scaler(4).group_for_newcomer(groups) is groups[0], "a synchronous run has one group"
