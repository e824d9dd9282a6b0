"""The trials of sweeps as jobs. A trial waits, is shown and followed like any job, but its sweep starts and ends it."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from service.jobs.lifecycle import AT_WORK, Lifecycle
from service.jobs.runs import TrialHandle
from service.spec import JobSpec
from service.status import Status
from trainers import State

INTERRUPTED = Status(State.QUEUED, "Interrupted", "goes on from its checkpoint when its sweep does")


class TrialJobs:
    """All trials of one service."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self.lifecycle = lifecycle
        self.store = lifecycle.store
        self.active = lifecycle.active

    def __contains__(self, job_id: str) -> bool:
        return job_id in self.active.trials

    async def add(self, sweep: str, trials: Mapping[str, tuple[JobSpec, Path]], user: str) -> None:
        """Store the trials of a sweep, job id -> spec and run directory, that are not stored yet."""
        await asyncio.to_thread(self.store.add_trials, sweep, trials, user)

    def register(self, job_id: str, handle: TrialHandle) -> None:
        """Know a trial that the store has."""
        self.active.trials[job_id] = handle

    def forget(self, job_id: str) -> None:
        """Its sweep is removed."""
        self.active.trials.pop(job_id, None)
        self.active.remove(job_id)
        self.lifecycle.queue.release(job_id)

    async def record_state(self, job_id: str, status: Status) -> None:
        """Take in what the sweep reports of a trial: that it runs, waits again, or has ended."""
        job = await asyncio.to_thread(self.store.get, job_id)
        if job.state.is_terminal:
            return
        if status.state is State.QUEUED:
            if job.state is not State.QUEUED:
                await self.lifecycle.move(job_id, AT_WORK, INTERRUPTED)
            return
        active = self.active.get(job_id) or self.active.add(job)
        if active.follower is not None:  # it reads the end from the log
            return
        if not status.state.is_terminal:
            self.lifecycle.follow(job, self.active.trials[job_id])
            return
        while await active.log.read():
            pass
        if active.log.ended:
            await self.lifecycle.finish(job_id)
        else:
            await self.lifecycle.record_state(job, status)
