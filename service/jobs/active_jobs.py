"""The jobs that have not ended, as this process holds them in memory."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from service.database.job_store import Job
from service.jobs.live_log import LiveLog
from service.jobs.progress import Progress
from service.jobs.runs import RunHandle, TrialHandle
from trainers import State

logger = logging.getLogger(__name__)


@dataclass
class ActiveJob:
    """What is held in memory of one job."""

    log: LiveLog
    epochs: int
    deadline: float | None = None
    """In seconds since 1970."""
    handle: RunHandle | None = None
    """Its run; none while it waits, is paused, or is being started."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    """What was asked of it that its log does not tell yet, since there is nobody yet who writes it."""
    follower: asyncio.Task[None] | None = None
    """Reads its log while it runs."""


class ActiveJobs:
    """All active jobs of one service. It also knows which jobs are trials, which their sweeps start and end."""

    def __init__(self) -> None:
        self.jobs: dict[str, ActiveJob] = {}
        self.trials: dict[str, TrialHandle] = {}

    def __contains__(self, job_id: str) -> bool:
        return job_id in self.jobs

    def __getitem__(self, job_id: str) -> ActiveJob:
        return self.jobs[job_id]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self.jobs))

    def get(self, job_id: str) -> ActiveJob | None:
        """The job; none if it is not active."""
        return self.jobs.get(job_id)

    def add(self, job: Job) -> ActiveJob:
        """Begin to hold a job."""
        limit_s = job.spec.get("deadline_s")
        deadline = None if limit_s is None or job.id in self.trials else job.created + limit_s
        active = self.jobs[job.id] = ActiveJob(LiveLog(job.run_dir), job.spec["epochs"], deadline)
        return active

    def remove(self, job_id: str) -> None:
        """The job has ended."""
        self.jobs.pop(job_id, None)

    async def close(self) -> None:
        """Stop reading all logs; the runs go on."""
        for active in self.jobs.values():
            if active.follower is not None:
                active.follower.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await active.follower
        self.jobs.clear()

    def run_dirs(self) -> dict[str, Path]:
        """Their run directories, by job id. May be called from any thread."""
        return {job_id: active.log.run_dir for job_id, active in list(self.jobs.items())}

    def progress(self) -> dict[str, Progress]:
        """Their progress, by job id. May be called from any thread."""
        return {job_id: active.log.progress for job_id, active in list(self.jobs.items())}

    def eta_s(self, job_id: str) -> float | None:
        """Seconds until a job ends; none if that is not known."""
        active = self.jobs.get(job_id)
        return None if active is None else active.log.progress.eta_s(active.epochs)

    def take_overdue(self) -> list[str]:
        """The jobs whose deadline has passed; each is returned once."""
        now = time.time()
        found = [job_id for job_id, job in self.jobs.items() if job.deadline is not None and job.deadline < now]
        for job_id in found:
            self.jobs[job_id].deadline = None
        return found

    async def scale(self, job_id: str, workers: int) -> bool:
        """Ask a running job to train with so many workers. Returns whether it could be asked."""
        active = self.jobs.get(job_id)
        if active is None or active.handle is None or active.log.progress.state is not State.RUNNING:
            return False
        try:
            await asyncio.to_thread(active.handle.scale, workers)
        except Exception:  # it is about to end, or cannot have so many
            logger.exception("could not scale job %s to %d workers", job_id, workers, extra={"job": job_id})
            return False
        return True
