"""Whom the watch ends, and what it leaves for the log. Without Ray."""

import asyncio
from typing import Any

import pytest

from tests.runtime.control.fakes import FakeLog, prepared
from tests.runtime.runs import spec
from trainers.elastic.heartbeat import DEAF_S, Heartbeat, HeartbeatHistory
from trainers.runtime.actor_handles import WorkerHandle
from trainers.runtime.actor_pool import ActorPool
from trainers.runtime.control import actor_watch
from trainers.runtime.control.actor_watch import ActorWatch, WatchedActor
from trainers.runtime.control.onlookers.usage import UsageLog
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
    watch = ActorWatch(pool, print, UsageLog(FakeLog()))
    watch._judge(one)
    watch._judge(one)  # once is enough
    assert ended == [("a", actor_watch.kill, process)]
    why = "did not read example 57 of the dataset within 5 s"
    assert (worker.fault if worker else pool.why_gone("actor")) == why
    assert pool.why_gone("actor") == "died"


def test_a_long_start_names_who_does_something_and_not_who_waits_for_it() -> None:
    pool = ActorPool("job", spec(), None, None)
    watch, now_s = ActorWatch(pool, print, UsageLog(FakeLog())), 0.0
    watch.clock.read = lambda: now_s  # type: ignore[method-assign]
    for number, activity, for_s in ((0, "waits for another process of this node", 40), (1, "opens the dataset", 35)):
        worker = WorkerHandle(number, f"job/worker/{number}", f"actor {number}")
        history = HeartbeatHistory(0.0, 0.0, beat=Heartbeat(activity=activity, activity_s=for_s))
        watch.watched[worker.actor] = WatchedActor(worker.actor, worker.name, history, worker, ProcessId("a", 7, 1.0))
    assert watch.what_is_awaited() == "worker/1 opens the dataset, 35 s, and 1 more get ready"
    for one in watch.watched.values():
        assert one.worker is not None
        one.worker.prepared = prepared(one.worker.number)
    assert watch.what_is_awaited() is None


def test_the_time_until_there_was_a_process_is_not_its_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray starts as many at a time as the machine has cores: of 256 actors the last begin minutes later."""
    ended: list[Any] = []
    process = ProcessId("a", 7, 1.0)
    monkeypatch.setattr(actor_watch, "do_on", lambda *arguments: ended.append(arguments))
    monkeypatch.setattr(actor_watch, "process_of", lambda actor: ("a", 7))
    monkeypatch.setattr(actor_watch, "ask_on", lambda node, function, *arguments: process)
    watch, now_s = ActorWatch(ActorPool("job", spec(), None, None), print, UsageLog(FakeLog())), 2 * DEAF_S
    watch.clock.read = lambda: now_s  # type: ignore[method-assign]
    one = WatchedActor("actor", "", HeartbeatHistory(0.0, 0.0), looking=None)
    asyncio.run(watch._find(one))
    assert one.process == process
    monkeypatch.setattr(watch, "_look", lambda *_: asyncio.sleep(0))

    async def judge() -> None:
        watch._judge(one)

    asyncio.run(judge())
    assert (one.fault, ended) == (None, [])
    now_s += DEAF_S
    asyncio.run(judge())
    assert one.fault == f"did not answer for {3 * DEAF_S:.1f} s, nor use CPU time"
