"""Asks every actor of a run for its heartbeat, from the moment it is started, and ends those that are stopped or hang.

An actor that does not answer is looked at from outside: what it does, the system of its node says.
"""

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import ray

from trainers.elastic.heartbeat import BEAT_S, DEAF_S, HeartbeatHistory, OwnTime, Printed
from trainers.runtime.actor_handles import CONTROL, WorkerHandle
from trainers.runtime.actor_pool import ActorPool
from trainers.runtime.control.onlookers.usage import UsageLog
from trainers.runtime.nodes import ask_on, do_on, process_of
from trainers.runtime.processes import ProcessId, kill, look_at_all, process_numbered, this_process

FIRST_BEAT_S = 0.1
"""Before the second question; each pause is twice as long as the one before, up to a heartbeat's."""

TOGETHER = 64
"""Actors that are asked in each BEAT_S; where there are more of them, they take turns. A question takes 3 ms of a core,
most of it in the actor, and hundreds of actors may share a few cores."""

LAST_READ_S = 20.0
"""How long a worker may read one example once the run was told to stop. What is lost then is the step under way."""

LAST_WORDS_S = 3.0
"""How long actors have to tell what they have printed last, before they end."""


@dataclass(eq=False)
class WatchedActor:
    """One actor, and what is known of it."""

    actor: Any
    name: str
    history: HeartbeatHistory
    worker: WorkerHandle | None = None
    """If it is a worker."""
    process: ProcessId | None = None
    """None before it first answers: until then Ray is starting it."""
    fault: str | None = None
    """Why it was ended."""
    asking: asyncio.Task[None] | None = field(default=None, repr=False)
    finding: asyncio.Task[None] | None = field(default=None, repr=False)


class ActorWatch:
    """Kept by the coordinator."""

    def __init__(self, pool: ActorPool, hear: Callable[[Printed], None], usage: UsageLog) -> None:
        """hear: Takes what actors have printed; usage: what they use of their machines."""
        self.pool = pool
        self.hear = hear
        self.usage = usage
        self.clock = OwnTime(2 * BEAT_S)
        self.read_within_s = pool.spec.data.timeout_s
        self.apart_s = pool.spec.algorithm.traits.apart_s
        self.watched: dict[Any, WatchedActor] = {}  # by the actor's handle
        self.looking: dict[str, asyncio.Task[None]] = {}  # by the node that is asked
        # Workers and shards of an earlier coordinator, before the pool has them.
        self.survivors: tuple[list[WorkerHandle], list[Any]] = ([], [])

    async def run(self) -> None:
        """Watch, until cancelled."""
        here = this_process(ray.get_runtime_context().get_node_id())
        pause_s = FIRST_BEAT_S  # a run may be over before the second
        for number in count():
            self._follow_pool(self.clock.read())
            self._ask_in_turns(number, here)
            self._look_at_the_silent()
            self.usage.look()
            await asyncio.sleep(pause_s)
            pause_s = min(BEAT_S, 2 * pause_s)

    async def hear_out(self) -> None:
        """Hear what they have printed last, from those that answer soon; nobody is judged any more."""
        self._follow_pool(self.clock.read())
        known = [one for one in self.watched.values() if self._is_up(one)]
        if known:
            here = this_process(ray.get_runtime_context().get_node_id())
            asked = [asyncio.create_task(self._ask(one, here)) for one in known]
            await asyncio.wait(asked, timeout=LAST_WORDS_S)
            _cancel(asked)
        self.usage.tell()

    def hurry(self) -> None:
        """The run is to stop: wait for nobody who reads the data for long."""
        self.read_within_s = min(self.read_within_s, LAST_READ_S)

    def what_is_awaited(self) -> str | None:
        """What keeps the workers from training, in a sentence; None if all of them are ready."""
        now_s = self.clock.read()
        pending = [one for one in self.watched.values() if one.worker is not None and one.worker.prepared is None]
        if not pending:
            return None
        activities = [(one, *self._activity(one, now_s)) for one in pending]
        # Of those that do something, and do not wait for each other, the one that has done it for longest.
        one, activity, seconds = max(activities, key=lambda found: (not found[1].startswith("waits"), found[2]))
        rest = f", and {len(pending) - 1} more get ready" if len(pending) > 1 else ""
        return f"{one.name.removeprefix(self.pool.job_id + '/')} {activity}, {seconds:.0f} s{rest}"

    def has_answered(self, actor: Any) -> bool:
        """Whether an actor has said a word to this coordinator."""
        return actor in self.watched and self.watched[actor].process is not None

    def memory_kills(self, actor: Any) -> tuple[str, int] | None:
        """The node of an actor, and how many processes the kernel had ended there for want of memory when it last
        answered, or was prepared; None if it was neither."""
        one = self.watched.get(actor)
        if one is None:
            return None
        if one.process is not None and one.history.beat.memory_kills >= 0:
            return one.process.node_id, one.history.beat.memory_kills
        prepared = None if one.worker is None else one.worker.prepared
        return None if prepared is None else (prepared.place.node_id, prepared.memory_kills)

    def is_computing(self, worker: WorkerHandle) -> bool:
        """Whether a worker is in a step, as far as one knows: one that does not answer now is given the time in which
        it is judged."""
        one = self.watched.get(worker.actor)
        return one is not None and (one.asking is not None or one.history.beat.computes)

    def _follow_pool(self, now_s: float) -> None:
        """Watch what the pool has now, and nothing else. A new actor is given time, as if it had just answered."""
        workers, shards = self.survivors
        actors: dict[Any, tuple[str, WorkerHandle | None]] = {}
        actors |= dict.fromkeys([*shards, *self.pool.beside_workers], ("", None))
        actors |= {worker.actor: (worker.name, worker) for worker in [*workers, *self.pool.workers]}
        for gone in self.watched.keys() - actors.keys():
            one = self.watched.pop(gone)
            _cancel([one.asking, one.finding])
        for actor, (name, worker) in actors.items():
            if actor not in self.watched:
                self.watched[actor] = WatchedActor(actor, name, HeartbeatHistory(now_s, now_s), worker)

    def _is_up(self, one: WatchedActor) -> bool:
        """Whether an actor runs, as far as one knows: a short run is over before all of them were asked."""
        return one.process is not None or any(other.prepared is not None for other in self.pool.workers)

    def _judge(self, one: WatchedActor) -> None:
        """End an actor that hangs; find the process of one that has not said a word."""
        now_s, process = self.clock.read(), one.process
        if one.fault is not None:
            return
        if process is None:
            if one.history.is_silent(now_s) and one.finding is None:
                one.finding = asyncio.create_task(self._find(one))
            return
        one.fault = one.history.fault(now_s, self.read_within_s, max(DEAF_S, self.apart_s))
        if one.fault is not None:
            if one.worker is not None:
                one.worker.fault = one.fault
            else:
                self.pool.faults[one.actor] = one.fault
            do_on(process.node_id, kill, process)

    def _look_at_the_silent(self) -> None:
        """Ask each node about all processes there that are silent: one question at a time, since each keeps a thread
        until it is back, and a node that is cut off does not answer."""
        now_s, silent = self.clock.read(), defaultdict[str, list[tuple[WatchedActor, ProcessId]]](list)
        for one in self.watched.values():
            if one.process is not None and one.fault is None and one.history.is_silent(now_s):
                silent[one.process.node_id].append((one, one.process))
        for node in silent.keys() - self.looking.keys():
            self.looking[node] = asyncio.create_task(self._look(node, silent[node]))

    def _ask_in_turns(self, number: int, here: ProcessId) -> None:
        """Judge all actors, and ask those whose turn it is in this round, and those that have not said a word yet."""
        turns = max(1, math.ceil(len(self.watched) / TOGETHER))
        self.usage.turn_s = turn_s = (turns - 1) * BEAT_S
        for place, one in enumerate(self.watched.values()):
            one.history.turn_s = turn_s
            self._judge(one)
            if one.asking is None and (one.process is None or place % turns == number % turns):
                one.asking = asyncio.create_task(self._ask(one, here))

    async def _ask(self, one: WatchedActor, here: ProcessId) -> None:
        with suppress(ray.exceptions.RayError):
            if one.process is None:
                self._found(one, await one.actor.process.options(concurrency_group=CONTROL).remote())
            question = one.actor.beat.options(concurrency_group=CONTROL, enable_task_events=False)
            beat = await question.remote(here, one.history.turn_s)
            one.history.hear(self.clock.read(), beat)
            if beat.printed is not None:
                self.hear(beat.printed)
            if beat.reading is not None:
                self.usage.hear(beat.reading)
        one.asking = None

    async def _look(self, node: str, silent: list[tuple[WatchedActor, ProcessId]]) -> None:
        try:
            with suppress(ray.exceptions.RayError):
                states = await asyncio.to_thread(ask_on, node, look_at_all, [process for _, process in silent])
                for (one, _), state in zip(silent, states or (), strict=False):
                    if state is not None:
                        one.history.see(self.clock.read(), state.is_stopped, state.cpu_s)
        finally:
            del self.looking[node]

    async def _find(self, one: WatchedActor) -> None:
        """Find out from Ray which process an actor is that has not said so: it may be stopped already."""
        with suppress(ray.exceptions.RayError):
            if (where := await asyncio.to_thread(process_of, one.actor)) is not None:
                node, pid = where
                self._found(one, await asyncio.to_thread(ask_on, node, process_numbered, node, pid))
        one.finding = None

    def _found(self, one: WatchedActor, process: ProcessId | None) -> None:
        """Ray starts few at a time: what an actor waited until there was a process is no silence of that."""
        one.process = one.process or process
        one.history.busy_s = self.clock.read()

    def _activity(self, one: WatchedActor, now_s: float) -> tuple[str, float]:
        """What an actor does, and for how long."""
        since_s = now_s - one.history.heard_s
        beat = one.history.beat
        if one.process is None or not beat.activity:
            return "is being started", since_s
        return beat.activity, beat.activity_s + since_s


def _cancel(tasks: Iterable[asyncio.Task[None] | None]) -> None:
    for task in tasks:
        if task is not None:
            task.cancel()
