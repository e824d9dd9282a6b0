"""Preflights of waiting jobs: what could never run is said before its turn comes."""

import asyncio
import logging
import time

from service.jobs.lifecycle import Lifecycle
from service.jobs.queueing.queue import JobQueue
from service.spec import JobSpec
from trainers import SpecRejected

AHEAD = 32
"""Waiting jobs whose preflight runs before their turn."""
CALM_S = 1.0
"""A check waits until no job has come for so long: who submits many is answered first."""
LATEST_S = 10.0
"""But no longer than this."""
KNOWN = 1024
"""Specs that are remembered to have passed."""

logger = logging.getLogger(__name__)


class Preflights:
    """One at a time, since each holds a process on the cluster, which takes a second of a core from what trains."""

    def __init__(self, queue: JobQueue, lifecycle: Lifecycle) -> None:
        self.queue = queue
        self.lifecycle = lifecycle
        self.task: asyncio.Task[None] | None = None
        self.closing = False
        self.passed: dict[str, None] = {}
        """What has passed, the oldest first: a job that differs in its seed alone needs no check of its own."""

    def begin(self) -> None:
        """Check the first waiting jobs that have had none, unless that is being done."""
        if (self.task is None or self.task.done()) and self._next() is not None:
            self.task = asyncio.create_task(self._run(), name="preflights")

    async def close(self) -> None:
        """Abandon what is being checked."""
        self.closing = True
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)

    def _next(self) -> str | None:
        unchecked = (claim.job_id for claim in self.queue.line[:AHEAD] if claim.job_id not in self.queue.checked)
        return next(unchecked, None)

    async def _run(self) -> None:
        await self._calm()
        while not self.closing and (job_id := self._next()) is not None:
            self.queue.checked.add(job_id)
            await self._check(job_id)

    async def _calm(self) -> None:
        latest_s = time.monotonic() + LATEST_S
        while (wait_s := min(self.queue.came_s + CALM_S, latest_s) - time.monotonic()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(wait_s)

    async def _check(self, job_id: str) -> None:
        store, runs = self.lifecycle.store, self.lifecycle.runs
        try:
            spec = (await asyncio.to_thread(store.get, job_id)).job_spec
            if (key := _key(spec)) in self.passed:
                return
            await asyncio.to_thread(runs.preflight, spec.train, lambda: self._waits(job_id))
            if key is not None and self._waits(job_id):  # else it may have been abandoned
                self.passed[key] = None
                while len(self.passed) > KNOWN:
                    del self.passed[next(iter(self.passed))]
        except SpecRejected as error:
            await self.lifecycle.reject(job_id, error.reason, str(error))
        except Exception:  # only a clear no counts; the coordinator checks again
            logger.exception("could not check waiting job %s", job_id, extra={"job": job_id})

    def _waits(self, job_id: str) -> bool:
        return not self.closing and job_id in self.queue.waiting


def _key(spec: JobSpec) -> str | None:
    """Equal for two specs of which one need not be checked if the other was; none if it is checked by itself, since
    the user's code may have changed."""
    return None if spec.code is not None else spec.train.model_dump_json(exclude={"seed"})
