"""Whom the watch ends, and what it leaves for the log. Without Ray."""

import asyncio
import threading
from typing import Any

import pytest
import ray

from tests.runtime.control.fakes import FakeLog, prepared
from tests.runtime.runs import spec
from trainers.elastic.heartbeat import BEAT_S, DEAF_S, SILENCE_S, Heartbeat, HeartbeatHistory
from trainers.runtime.actor_handles import WorkerHandle
from trainers.runtime.actor_pool import ActorPool
from trainers.runtime.control import actor_watch
from trainers.runtime.control.actor_watch import TOGETHER, ActorWatch, WatchedActor
from trainers.runtime.control.onlookers.usage import UsageLog
from trainers.runtime.processes import ProcessId, ProcessState


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


@pytest.mark.parametrize("says_so", [False, True])
def test_the_time_until_there_was_a_process_is_not_its_silence(monkeypatch: pytest.MonkeyPatch, says_so: bool) -> None:
    """Ray starts as many at a time as the machine has cores: of 256 actors the last begin minutes later. says_so: The
    process has answered where it is, and no heartbeat yet; else Ray was asked for it."""
    ended: list[Any] = []
    process = ProcessId("a", 7, 1.0)
    monkeypatch.setattr(actor_watch, "do_on", lambda *arguments: ended.append(arguments))
    monkeypatch.setattr(actor_watch, "process_of", lambda actor: ("a", 7))
    monkeypatch.setattr(actor_watch, "ask_on", lambda node, function, *arguments: process)
    watch, now_s = ActorWatch(ActorPool("job", spec(), None, None), print, UsageLog(FakeLog())), 2 * DEAF_S
    watch.clock.read = lambda: now_s  # type: ignore[method-assign]
    one = WatchedActor(Starting(process), "", HeartbeatHistory(0.0, 0.0))
    asyncio.run(watch._ask(one, process) if says_so else watch._find(one))
    assert one.process == process
    watch._judge(one)
    assert (one.fault, ended) == (None, [])
    now_s += DEAF_S
    watch._judge(one)
    assert one.fault == f"did not answer for {3 * DEAF_S:.1f} s, nor use CPU time"


@pytest.mark.parametrize(("count", "turns"), [(1, 1), (TOGETHER, 1), (TOGETHER + 1, 2), (4 * TOGETHER, 4)])
def test_a_crowd_is_asked_in_turns_and_has_so_much_longer(count: int, turns: int) -> None:
    """256 actors on two cores spent a quarter of these on answering."""
    watch, asked = (
        ActorWatch(ActorPool("job", spec(), None, None), print, UsageLog(FakeLog())),
        list[tuple[int, float]](),
    )

    class Answering:
        def __init__(self, number: int) -> None:
            self.process = Method(ProcessId("a", number, 1.0))
            self.beat, self.number = self, number

        def options(self, **_: Any) -> "Answering":
            return self

        async def remote(self, _: ProcessId, turn_s: float) -> Heartbeat:
            asked.append((self.number, turn_s))
            return Heartbeat()

    async def rounds() -> list[set[tuple[int, float]]]:
        found = []
        for number in range(1 + turns):
            asked.clear()
            watch._ask_in_turns(number, ProcessId("a", 0, 1.0))
            await asyncio.gather(*(one.asking for one in watch.watched.values() if one.asking is not None))
            found.append(set(asked))
        return found

    for number in range(count):
        watch.watched[number] = WatchedActor(Answering(number), "", HeartbeatHistory(0.0, 0.0))
    first, *later = asyncio.run(rounds())
    everybody = {(number, (turns - 1) * BEAT_S) for number in range(count)}
    assert first == everybody  # nobody has said a word before
    assert sum(map(len, later)) == count
    assert set[tuple[int, float]].union(*later) == everybody
    assert max(map(len, later)) <= TOGETHER
    history = watch.watched[0].history
    late_s = history.heard_s + (turns - 1) * BEAT_S
    assert [history.is_silent(late_s + since_s) for since_s in (SILENCE_S - 0.1, SILENCE_S)] == [False, True]


class Starting:
    """An actor that says where it is, and cannot be reached again."""

    def __init__(self, process: ProcessId) -> None:
        self.process, self.beat = Method(process), Method(ray.exceptions.RayError("unavailable"))


class Method:
    """Of an actor, with what it answers."""

    def __init__(self, answer: ProcessId | Exception) -> None:
        self.answer = answer

    def options(self, **_: Any) -> "Method":
        return self

    async def remote(self, *_: Any) -> ProcessId:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_a_node_is_asked_once_about_all_of_its_silent_actors_and_again_when_it_has_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """256 actors of a machine that is too busy to answer, and threads for a handful of questions."""
    asked: list[tuple[str, list[int]]] = []
    go_on = threading.Event()

    def ask(node: str, function: Any, processes: list[ProcessId]) -> list[ProcessState | None]:
        asked.append((node, [process.pid for process in processes]))
        go_on.wait(60)
        return [None if process.pid == 8 else ProcessState(False, float(now_s)) for process in processes]

    monkeypatch.setattr(actor_watch, "ask_on", ask)
    watch, now_s = ActorWatch(ActorPool("job", spec(), None, None), print, UsageLog(FakeLog())), 2 * SILENCE_S
    watch.clock.read = lambda: now_s  # type: ignore[method-assign]
    for pid, node, heard_s in ((7, "a", 0.0), (8, "a", 0.0), (9, "a", now_s), (10, "b", 0.0)):
        history = HeartbeatHistory(heard_s, heard_s)
        watch.watched[pid] = WatchedActor(pid, "", history, process=ProcessId(node, pid, 1.0))

    async def look() -> None:
        watch._look_at_the_silent()
        watch._look_at_the_silent()
        go_on.set()
        await asyncio.gather(*watch.looking.values())

    asyncio.run(look())
    assert sorted(asked) == [("a", [7, 8]), ("b", [10])]
    assert {pid: one.history.seen for pid, one in watch.watched.items()} == {
        7: (now_s, now_s), 8: None, 9: None, 10: (now_s, now_s)
    }  # fmt: skip
    now_s += 1.0
    asyncio.run(look())
    assert sorted(asked[2:]) == [("a", [7, 8]), ("b", [10])]
    assert {pid: one.history.busy_s for pid, one in watch.watched.items()} == {7: now_s, 8: 0.0, 9: 0.0, 10: now_s}
