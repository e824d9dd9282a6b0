"""Admission: which waiting job starts when. Strictly in order: small jobs do not pass a large one for ever."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from service.runs import Runs
from service.store import Job, Store
from trainers import Resources, SpecRejected, State

LOOK_AGAIN_S = 1.0  # Ray tells nobody when resources become free

logger = logging.getLogger(__name__)


class Queue:
    """Starts jobs as they fit. Holds what the admitted ones took, because Ray's own count lags behind."""

    def __init__(
        self,
        store: Store,
        runs: Runs,
        launch: Callable[[Job], Coroutine[Any, Any, None]],
        reject: Callable[[Job, str, str], Coroutine[Any, Any, None]],
    ) -> None:
        self.store = store
        self.runs = runs
        self.launch = launch
        self.reject = reject
        self.ready: set[str] = set()
        """Waiting jobs whose log has begun: from then on it belongs to the coordinator."""
        self.taken: dict[str, Resources] = {}
        self.unsettled: set[str] = set()
        """Admitted jobs that may not have taken yet, as far as Ray can tell, what they need."""
        self.launches: dict[str, asyncio.Task[None]] = {}
        self.preflights: dict[str, asyncio.Task[None]] = {}
        self.changed = asyncio.Event()

    def add(self, job_id: str) -> None:
        """The job may start from now on."""
        self.ready.add(job_id)
        self.changed.set()

    def occupy(self, job: Job) -> None:
        """A job that runs already, found again."""
        self.taken[job.id] = self.runs.needs(job.job_spec.train)

    def settled(self, job_id: str) -> None:
        """The job holds its resources, so Ray's count has them."""
        self.unsettled.discard(job_id)
        self.changed.set()

    def release(self, job_id: str) -> None:
        """The job has ended."""
        self.ready.discard(job_id)
        self.taken.pop(job_id, None)
        self.preflights.pop(job_id, None)
        self.settled(job_id)

    async def run(self) -> None:
        """Admit for ever."""
        while True:
            try:
                waiting = await self._admit()
            except Exception:  # the cluster or the database may be back in a second
                logger.exception("could not look at the queue")
                waiting = True
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.changed.wait(), LOOK_AGAIN_S if waiting else None)
            self.changed.clear()

    async def close(self) -> None:
        """Wait for what is being started, drop what is being checked."""
        for task in self.preflights.values():
            task.cancel()
        await asyncio.gather(*self.launches.values(), *self.preflights.values(), return_exceptions=True)

    async def _admit(self) -> bool:
        """Start the first ones that fit. Returns whether any is left waiting."""
        waiting = [job for job in await asyncio.to_thread(self.store.queued) if job.id in self.ready]
        while waiting:
            job = waiting[0]
            needs = await asyncio.to_thread(self.runs.needs, job.job_spec.train)
            if not needs.fits(await self._free()):
                break
            waiting.pop(0)
            told = (State.STARTING, "Admitted", "starts its coordinator and workers")
            if await asyncio.to_thread(self.store.move, job.id, (State.QUEUED,), *told):
                self._start(job, needs)
        unchecked = [job for job in waiting if job.id not in self.preflights]
        if unchecked and all(task.done() for task in self.preflights.values()):  # each holds a process on the cluster
            job = unchecked[0]
            self.preflights[job.id] = asyncio.create_task(self._preflight(job), name=f"preflight {job.id}")
        return bool(waiting)

    def _start(self, job: Job, needs: Resources) -> None:
        self.taken[job.id] = needs
        self.unsettled.add(job.id)
        task = asyncio.create_task(self.launch(job), name=f"launch {job.id}")
        self.launches[job.id] = task
        task.add_done_callback(lambda _: self.launches.pop(job.id, None))

    async def _free(self) -> Resources:
        total, available = await asyncio.to_thread(
            lambda: (self.runs.total_resources(), self.runs.available_resources())
        )
        unsettled = [self.taken[job_id] for job_id in self.unsettled]
        taken = list(self.taken.values())
        return Resources(
            cpus=min(total.cpus - sum(r.cpus for r in taken), available.cpus - sum(r.cpus for r in unsettled)),
            gpus=min(total.gpus - sum(r.gpus for r in taken), available.gpus - sum(r.gpus for r in unsettled)),
        )

    async def _preflight(self, job: Job) -> None:
        try:
            await asyncio.to_thread(self.runs.preflight, job.job_spec.train)
        except SpecRejected as error:
            await self.reject(job, error.reason, str(error))
        except Exception:  # only a clear no counts; the coordinator checks again
            logger.exception("could not check waiting job %s", job.id)
        finally:
            self.changed.set()
