"""Recovery after a restart: takes up the jobs that an earlier process left in any state."""

import asyncio
import contextlib
import logging

from service.database.job_store import Job
from service.jobs.lifecycle import AT_REST, HELD, Lifecycle
from service.jobs.progress import LOST
from trainers import State

RESTORE_EVERY_S = 5.0

logger = logging.getLogger(__name__)


class Recovery:
    """Takes jobs up as soon as their run directories are there."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self.lifecycle = lifecycle
        self.run_dirs = lifecycle.sinks.run_dirs
        self.waiting: list[asyncio.Task[None]] = []
        """Jobs whose run directories cannot be restored yet."""

    async def start(self) -> None:
        """Take up all jobs that have not ended."""
        for job in await asyncio.to_thread(self.lifecycle.store.unfinished):
            if (found := await asyncio.to_thread(self.run_dirs.restored, job)) is not None:
                await self._recover(found)
            else:
                self.waiting.append(asyncio.create_task(self._recover_later(job), name=f"recover {job.id}"))

    async def stop(self) -> None:
        """Give up waiting for run directories."""
        for task in self.waiting:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _recover_later(self, job: Job) -> None:
        while (found := await asyncio.to_thread(self.run_dirs.restored, job)) is None:  # noqa: ASYNC110
            await asyncio.sleep(RESTORE_EVERY_S)
        await self._recover(found)

    async def _recover(self, job: Job) -> None:
        lifecycle = self.lifecycle
        active = lifecycle.active.add(job)
        # Asked before the log is read: if there is no coordinator, what the log says then is final.
        handle = await asyncio.to_thread(lifecycle.runs.find_run, job.id)
        while await active.log.read():
            pass
        progress = active.log.progress
        if active.log.ended:
            await lifecycle.finish(job.id)
        elif progress.state is State.PAUSED or (
            progress.state is State.QUEUED and (handle is None or progress.retries)
        ):
            await lifecycle.settle(job)  # its coordinator, if there is one, has written its last state
        elif handle is None and job.state in AT_REST:
            await lifecycle.settle(job)  # its log was restored from a copy that is older than that state
        elif handle is None:
            await lifecycle.clean_up(job.id)
            await lifecycle.failed(job, LOST, "the run's coordinator died")
        else:
            lifecycle.queue.occupy(job, len(progress.workers))
            if progress.state not in AT_REST:
                await lifecycle.move(job.id, HELD, progress.status)
            lifecycle.follow(job, handle, was_started=False)
            await lifecycle.forward_request(job.state, handle)
