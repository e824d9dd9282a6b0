"""Whom the watch ends, and what it leaves for the log. Without Ray."""

from typing import Any

import pytest

from tests.runtime.runs import spec
from trainers.elastic.heartbeat import Heartbeat, HeartbeatHistory
from trainers.runtime.actor_handles import WorkerHandle
from trainers.runtime.actor_pool import ActorPool
from trainers.runtime.control import actor_watch
from trainers.runtime.control.actor_watch import ActorWatch, WatchedActor
from trainers.runtime.processes import ProcessId


@pytest.mark.parametrize("is_worker", [True, False])
def test_an_actor_that_hangs_is_ended_and_the_reason_kept(monkeypatch: pytest.MonkeyPatch, is_worker: bool) -> None:
    """Of the evaluator, too: it reads the test set."""
    ended: list[Any] = []
    monkeypatch.setattr(actor_watch, "do_on", lambda *arguments: ended.append(arguments))
    pool, process = ActorPool("job", spec(data={"name": "digits", "timeout_s": 5}), None, None), ProcessId("a", 7, 1.0)
    worker = WorkerHandle(0, "job/worker/0", "actor") if is_worker else None
    reads = Heartbeat(example=57, reading_s=6)
    one = WatchedActor("actor", "", HeartbeatHistory(0.0, 0.0, beat=reads), worker, process)
    watch = ActorWatch(pool)
    watch._judge(one)
    watch._judge(one)  # once is enough
    assert ended == [("a", actor_watch.kill, process)]
    why = "did not read example 57 of the dataset within 5 s"
    assert (worker.fault if worker else pool.why_gone("actor")) == why
    assert pool.why_gone("actor") == "died"
