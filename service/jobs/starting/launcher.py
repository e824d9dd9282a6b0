"""Starts the run of an admitted job."""

import asyncio
import logging
import time

from service.database.job_store import Job
from service.jobs.lifecycle import Lifecycle
from service.jobs.progress import Progress
from service.jobs.runs import RunHandle
from service.jobs.service_metrics import ServiceMetrics
from service.storage.checkpoints import resuming
from trainers import MillraceError, SpecRejected

logger = logging.getLogger(__name__)


class Launcher:
    """Starts runs, and hands them to the lifecycle."""

    def __init__(self, lifecycle: Lifecycle, metrics: ServiceMetrics) -> None:
        self.lifecycle = lifecycle
        self.store = lifecycle.store
        self.runs = lifecycle.runs
        self.metrics = metrics

    async def launch(self, job_id: str) -> None:
        """Start a job that has been moved to STARTING, or tell a sweep that its trial may run. A failure to start is
        recorded as the job's."""
        if (trial := self.lifecycle.active.trials.get(job_id)) is not None:
            await asyncio.to_thread(trial.give_turn)
            return
        job = await asyncio.to_thread(self.store.get, job_id)
        log = self.lifecycle.active[job_id].log
        progress = log.progress
        queued = progress.ended or job.created  # its last event says that it waits
        self.metrics.queue_wait.observe(max(0.0, time.time() - queued))
        try:
            await log.read()
        except OSError:
            logger.exception("could not begin the log of job %s", job_id, extra={"job": job_id})
            self.lifecycle.queue.release(job_id)
            await self.lifecycle.record_state(job, progress.status, is_written=True)  # it waits until there is room
            return
        try:
            handle = await asyncio.to_thread(self._start, job, progress)
        except Exception as error:
            logger.exception("could not start job %s", job_id, extra={"job": job_id})
            await self.lifecycle.clean_up(job_id)
            reason = error.reason if isinstance(error, MillraceError) else "StartFailed"
            message = f"the run could not be started: {error}"
            await self.lifecycle.failed(job, reason, message, is_hopeless=isinstance(error, SpecRejected))
            return
        self.lifecycle.follow(job, handle)
        state = (await asyncio.to_thread(self.store.get, job_id)).state
        await self.lifecycle.forward_request(state, handle)

    def _start(self, job: Job, progress: Progress) -> RunHandle:
        if progress.seq > 1:  # it ran before, and what is left of that run has names that are needed again
            self.runs.cleanup_run(job.id)
        job = self.lifecycle.sinks.run_dirs.find(job.id)
        spec = resuming(job.job_spec.train, job.run_dir)
        return self.runs.start_run(job.id, spec, job.run_dir, progress.retries < job.spec.get("retries", 0))
