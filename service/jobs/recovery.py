"""Recovery: takes up the jobs that an earlier process left in any state, and those that nobody works at any more."""

import asyncio
import contextlib
import logging
from collections.abc import Collection
from functools import partial

from service.database.job_store import Job
from service.errors import SpecUnreadable
from service.jobs.active_jobs import ActiveJob
from service.jobs.lifecycle import AT_REST, AT_WORK, HELD, Lifecycle, first_event
from service.jobs.progress import LOST
from trainers import State

RESTORE_EVERY_S = 5.0

logger = logging.getLogger(__name__)


class Recovery:
    """Takes jobs up as soon as their run directories are there."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self.lifecycle = lifecycle
        self.run_dirs = lifecycle.sinks.run_dirs
        self.waiting: dict[str, asyncio.Task[None]] = {}
        """Jobs whose run directories cannot be restored yet."""
        self.unreadable: set[str] = set()
        """Jobs that another version of Millrace has to take up, because this one cannot read their specs."""

    async def start(self) -> None:
        """Take up all jobs that have not ended."""
        for job in await asyncio.to_thread(self.lifecycle.store.unfinished):
            if (found := await asyncio.to_thread(self.run_dirs.restored, job)) is not None:
                await self.take_up(found)
            else:
                task = self.waiting[job.id] = asyncio.create_task(self._take_up_later(job), name=f"recover {job.id}")
                task.add_done_callback(partial(self._taken_up, job.id))

    def _taken_up(self, job_id: str, _: "asyncio.Task[None]") -> None:
        self.waiting.pop(job_id, None)

    async def stop(self) -> None:
        """Give up waiting for run directories."""
        for task in list(self.waiting.values()):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _take_up_later(self, job: Job) -> None:
        while (found := await asyncio.to_thread(self.run_dirs.restored, job)) is None:  # noqa: ASYNC110
            await asyncio.sleep(RESTORE_EVERY_S)
        await self.take_up(found)

    async def take_up(self, job: Job) -> None:
        """Find out what has become of a job at which nobody works here, and have it go on from there."""
        lifecycle = self.lifecycle
        if not self._can_read(job):
            return
        active = lifecycle.active.get(job.id) or lifecycle.active.add(job)
        # Asked before the log is read: if there is no coordinator, what the log says then is final.
        handle = await asyncio.to_thread(lifecycle.runs.find_run, job.id)
        while await active.log.read():
            pass
        if active.log.progress.seq == 0:
            by = await asyncio.to_thread(lifecycle.store.audit.submitter, job.id)
            if job.is_untouched and handle is None:
                lifecycle.begin(job, lifecycle.queue.claim(job), by)
                return
            active.log.begin(first_event(job, by))
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

    def _can_read(self, job: Job) -> bool:
        """Whether this version can read the spec. If not, the log and the job's message say so once, and nothing of the
        job is touched."""
        try:
            self.lifecycle.queue.claim(job)
        except SpecUnreadable as error:
            self.unreadable.add(job.id)
            self.lifecycle.trouble[job.id] = str(error)
            logger.error("%s", error, extra={"job": job.id})
            return False
        return True


class Watchdog:
    """Tells jobs that nobody moves, and takes them up again as a restart would.

    A state is not judged by how long it lasts, but by who works at it: a launch that is under way, a coordinator whose
    log is followed, a place in the queue, a write that waits for room. A job that has none of them would stay as it is
    for ever.
    """

    def __init__(self, lifecycle: Lifecycle, recovery: Recovery, launches: Collection[str]) -> None:
        """launches: The jobs that are being started now."""
        self.lifecycle = lifecycle
        self.recovery = recovery
        self.launches = launches
        self.suspects: dict[str, tuple[State, int]] = {}
        """What nobody moved the last time: its state, and how many events its log had. Between two steps of a change
        nobody works at a job either, so it is taken up when it is found so twice and nothing has changed."""
        self.deaf: dict[str, State] = {}
        """What was asked the last time of a coordinator whose log said nothing of it: the request may be lost."""

    async def look(self) -> None:
        """Look at all jobs that have not ended, once."""
        before, deaf_before, self.suspects, self.deaf = self.suspects, self.deaf, {}, {}
        for job_id, state in (await asyncio.to_thread(self.lifecycle.store.unfinished_states)).items():
            active = self.lifecycle.active.get(job_id)
            if not self._is_moved(job_id, state, active):
                mark = self.suspects[job_id] = state, 0 if active is None else active.log.progress.seq
                if before.get(job_id) == mark:
                    await self._take_up(job_id, state)
            elif active is not None and active.handle is not None and _is_deaf(state, active):
                self.deaf[job_id] = state
                if deaf_before.get(job_id) is state:
                    await self.lifecycle.forward_request(state, active.handle)

    def _is_moved(self, job_id: str, state: State, active: ActiveJob | None) -> bool:
        """Whether somebody works at it, or it rests, or nobody here can."""
        lifecycle = self.lifecycle
        recovery = self.recovery
        if job_id in self.launches or job_id in recovery.waiting or job_id in recovery.unreadable:
            return True
        if lifecycle.is_recording(job_id):
            return True
        if active is None:
            return False
        if active.follower is not None:
            return not active.follower.done()
        rests = state is State.PAUSED and active.log.progress.state is State.PAUSED
        return rests or job_id in lifecycle.queue.waiting

    async def _take_up(self, job_id: str, state: State) -> None:
        try:
            job = await asyncio.to_thread(self.lifecycle.store.get, job_id)
            if job.state is not state or self._is_moved(job_id, state, self.lifecycle.active.get(job_id)):
                return  # while others were taken up
            logger.warning("nobody works at job %s, %s: it is taken up", job_id, state, extra={"job": job_id})
            await self.recovery.take_up(job)
        except Exception:  # one job must not keep the others from being looked at
            logger.exception("could not take up job %s", job_id, extra={"job": job_id})


def _is_deaf(state: State, active: ActiveJob) -> bool:
    """Whether the coordinator trains on although it was to stop."""
    return state in (State.CANCELLING, State.PAUSING) and active.log.progress.state in AT_WORK
