"""Admission: starts waiting jobs as the policy of the queue decides, so that none waits for ever."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from service.jobs.lifecycle import Lifecycle
from service.jobs.queueing.claims import Claim
from service.jobs.queueing.policy import Decision
from service.jobs.queueing.preemption import Preemption
from service.jobs.queueing.queue import JobQueue
from service.jobs.starting.launcher import Launcher
from service.jobs.starting.preflights import Preflights
from service.status import Status
from trainers import State

LOOK_AGAIN_S = 1.0  # Ray does not report that resources became free
SETTLE_S = 0.02  # changes that come together are looked at together
ADMITTED = Status(State.STARTING, "Admitted", "starts its coordinator and workers")

logger = logging.getLogger(__name__)


class Admission:
    """Starts jobs when they fit."""

    def __init__(self, queue: JobQueue, preemption: Preemption, lifecycle: Lifecycle, launcher: Launcher) -> None:
        self.queue = queue
        self.preemption = preemption
        self.lifecycle = lifecycle
        self.launcher = launcher
        self.launches: dict[str, asyncio.Task[None]] = {}
        self.preflights = Preflights(queue, lifecycle)

    async def run(self) -> None:
        """Admit jobs until cancelled."""
        while True:
            try:
                look_again = await self._admit()
            except Exception:  # the cluster or the database may be back in a second
                logger.exception("could not look at the queue")
                look_again = True
            with contextlib.suppress(TimeoutError):  # `wait_for` may swallow a cancellation that comes with a change
                async with asyncio.timeout(LOOK_AGAIN_S if look_again else None):
                    await self.queue.changed.wait()
            self.queue.changed.clear()
            await asyncio.sleep(SETTLE_S)

    async def close(self) -> None:
        """Wait for the jobs that are being started, and abandon the preflights."""
        await asyncio.gather(*self.launches.values(), self.preflights.close(), return_exceptions=True)

    async def _admit(self) -> bool:
        """Start the first jobs that fit. Returns whether any still waits, or has workers to get back."""
        queue = self.queue
        queue.shrinking, queue.blocked = (), None
        if not queue.waiting and not self.preemption.shrunk:
            queue.reserve(None)
            return False
        await queue.measure()
        if not queue.waiting:
            queue.reserve(None)
            await self.preemption.give_back(queue.free)
            return bool(self.preemption.shrunk)
        decision = queue.decide()
        await self._begin(decision.starts)
        await self._pass(decision)
        queue.reserve(decision.reserved)
        self.preflights.begin()
        return bool(queue.waiting)

    async def _pass(self, decision: Decision) -> None:
        """Make room for the reserved job, and start those behind it that cannot delay it."""
        queue, first = self.queue, decision.reserved
        if first is None:
            return
        queue.shrinking = await self.preemption.make_room(first, queue.promised)
        comes_soon = queue.shrinking or first.needs.fits(queue.promised)
        await self._begin(decision.beside if comes_soon else [*decision.beside, *decision.before])

    async def _begin(self, claims: Sequence[Claim]) -> None:
        """Start jobs, as long as Ray has room for them."""
        queue = self.queue
        for claim in claims:
            if not claim.needs.fits(queue.free):
                break
            is_trial = claim.job_id in self.lifecycle.active.trials  # whose sweep says in which state it is
            if is_trial or await self.lifecycle.move(claim.job_id, (State.QUEUED,), ADMITTED):
                self._start(queue.waiting.get(claim.job_id, claim))  # its priority may have changed in the meantime
                await queue.measure()
            if claim.job_id in queue.held or queue.waiting.get(claim.job_id) is claim:  # it has not come back
                queue.remove(claim.job_id)

    def _start(self, claim: Claim) -> None:
        self.queue.admit(claim)
        task = asyncio.create_task(self.launcher.launch(claim.job_id), name=f"launch {claim.job_id}")
        self.launches[claim.job_id] = task
        task.add_done_callback(lambda _: self.launches.pop(claim.job_id, None))
