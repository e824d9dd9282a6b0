"""What a coordinator does for a run's callbacks: it has an actor call them, and passes on what they ask.

The actor reads the log for itself. No step waits for it, and the coordinator only hears how far it is.
"""

import asyncio
import time
from contextlib import suppress
from typing import Any

import ray

from trainers.elastic.heartbeat import Printed
from trainers.errors import Fenced, RunFailed, UserCodeFailed
from trainers.events import Result, State
from trainers.runtime.actor_pool import ActorPool
from trainers.runtime.control.ending import Circumstances, RunEnd, after_failure, cause_of, explanation
from trainers.runtime.control.run_events import EvaluationAsked, EventQueue, StopsEarly
from trainers.runtime.control.run_log import RunLog
from trainers.runtime.gone import GONE
from trainers.runtime.messages import Delivered

LOOK_S = 0.2
"""Between two looks for what is new in the log."""
END_WITHIN_S = 120.0
"""How long the callbacks have for what is left once the run is over. The workers are gone by then, but until its last
state is in the log the job counts as running, and whoever waits for it waits: code that hangs must not hold it."""
ATTEMPTS = 3
"""Processes in a row that may die without having given the callbacks an event that none did before."""


class CallbackCalls:
    """The calls of one run's callbacks."""

    def __init__(self, pool: ActorPool, log: RunLog, events: EventQueue) -> None:
        self.pool = pool
        self.log = log
        self.events = events
        self.specs = pool.spec.callbacks
        self.actor: Any = None
        self.name = ""
        self.furthest = 0  # the last event that the callbacks were given
        self.deaths = 0  # since then
        self.under_way: asyncio.Future[Delivered] | None = None

    async def follow(self) -> None:
        """Have them called with every event of the log, until cancelled; what is under way then goes on.

        Raises:
            UserCodeFailed: One has raised, or cannot be made, and the run is to fail with it.
            RunFailed: Their process died again and again.
        """
        while self.specs:
            self.under_way = asyncio.ensure_future(self._ask("deliver"))
            found = await asyncio.shield(self.under_way)
            self.under_way = None
            self._pass_on(found)
            if not found.seq:
                await asyncio.sleep(LOOK_S)

    async def finish(self, end: RunEnd, last: RunEnd, result: Result | None) -> RunEnd:
        """Let them see the rest of the log and, where the run does not go on, its end; then end their process.

        last: The end as it is to stand in the log. Returns the end as it is then: one of them may have raised with
        which a run that would have succeeded is to fail.
        """
        if self.actor is None and (self.under_way is None or self.under_way.done()):
            return end  # they were given nothing; of a short run their process may not be there yet
        try:
            await asyncio.wait_for(self._see_to_end(last, result), END_WITHIN_S)
        except TimeoutError:
            late = f"the callbacks were not done {END_WITHIN_S:g} s after the end of the run; the rest is not told them"
            self.log.line("warning", late)
        except Fenced:
            raise
        except Exception as error:
            if (text := explanation(error)) is not None:
                self.log.line("error", text)
            return after_failure(error, Circumstances()) if end.state is State.SUCCEEDED else end
        finally:
            if self.actor is not None:
                ray.kill(self.actor)
        return end

    async def _see_to_end(self, end: RunEnd, result: Result | None) -> None:
        failure: Exception | None = None
        found: Delivered | None = None
        printed = list[Printed]()  # written last: each line would be one more event to give them
        while found is None or found.seq:
            try:
                found = await (self.under_way or self._ask("deliver"))
                self._say(found)
                printed += [found.printed] if found.printed is not None else []
            except ray.exceptions.RayTaskError as error:
                if self.actor is None or not isinstance(cause_of(error), UserCodeFailed):
                    raise  # one could not be made
                failure, found = failure or error, None  # the others see the rest
            self.under_way = None
        if end.state.is_terminal:
            data = {"state": end.state.value, "reason": end.reason, "message": end.message}
            told = None if result is None else result.model_dump(mode="json")
            last = await self._ask("end", data | {"result": told}, time.time())
            self._say(last)
            printed += [last.printed] if last.printed is not None else []
        for one in printed:
            self.log.printed(one)
        if failure is not None:
            raise failure

    def _pass_on(self, found: Delivered) -> None:
        self._say(found)
        if found.printed is not None:
            self.log.printed(found.printed)
        if found.stop is not None:
            self.events.put_nowait(StopsEarly(found.stop))
        if found.evaluate:
            self.events.put_nowait(EvaluationAsked())

    def _say(self, found: Delivered) -> None:
        for sentence in found.dropped:
            self.log.line("warning", sentence)

    async def _ask(self, method: str, *arguments: Any) -> Delivered:
        """Ask the actor, and if it dies another one, which begins with the first event of the log again."""
        while self.specs:
            try:
                actor = self.actor or await self._start()
                found: Delivered = await getattr(actor, method).remote(*arguments)
            except GONE:
                self._lose()
            else:
                if found.seq > self.furthest:
                    self.furthest, self.deaths = found.seq, 0
                return found
        return Delivered()

    async def _start(self) -> Any:
        actor, self.name = self.pool.start_callbacks(self.log.run_dir)
        try:
            await actor.prepare.remote()
        except ray.exceptions.RayTaskError:
            ray.kill(actor)
            raise
        self.actor = actor
        return actor

    def _lose(self) -> None:
        """The actor has died. Raises RunFailed where that was once too often, and the run must have its callbacks."""
        self.actor = None
        self.deaths += 1
        with suppress(OSError):  # a full disk is told by what the run needs
            self.log.write("fault", {"actor": self.name, "why": "died"})
        if self.deaths < ATTEMPTS:
            return
        what = f"the process of the callbacks died {ATTEMPTS} times without getting on; is there memory enough?"
        if any(one.on_error == "fail" for one in self.specs):
            raise RunFailed(what)
        self.specs = ()
        self.log.line("warning", f"{what} The run goes on without them")
