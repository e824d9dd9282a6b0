"""Shows jobs: lists, single jobs, logs, metric series and checkpoints."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import BinaryIO, TypeVar

from service.database.job_query import Query
from service.database.job_store import Job
from service.errors import NotExportable
from service.exports.exports import WEIGHTS, Exports, FileFormat
from service.job_summary import JobSummary
from service.jobs.active_jobs import ActiveJob
from service.jobs.lifecycle import Lifecycle, final_status
from service.jobs.live_log import read_batches
from service.jobs.metric_series import Line, table_of
from service.jobs.own_code import own_code
from service.jobs.progress import LogFilter, Progress
from service.jobs.views import JobView, Page, summary, view
from service.storage.checkpoints import CheckpointView, checkpoints, open_file
from service.storage.mirror import Mirror
from service.storage.traces import TraceView, open_trace, traces
from trainers import Event, State

S = TypeVar("S", bound=JobSummary)


class JobReader:
    """The jobs of one service, to be read. Its methods run on one event loop; what blocks runs in threads."""

    def __init__(self, lifecycle: Lifecycle, mirror: Mirror | None) -> None:
        self.store = lifecycle.store
        self.runs = lifecycle.runs
        self.lifecycle = lifecycle
        self.active = lifecycle.active
        self.queue = lifecycle.queue
        self.projects = lifecycle.queue.projects
        self.run_dirs = lifecycle.sinks.run_dirs
        self.series = lifecycle.sinks.series
        self.mirror = mirror
        self.exports = Exports()

    async def num_queued(self) -> int:
        """The number of waiting jobs."""
        return await asyncio.to_thread(self.store.num_queued)

    async def page(self, query: Query) -> Page:
        """A page of jobs, newest first."""
        active = {job_id: self.active[job_id] for job_id in self.active}  # before the store, as in `show`
        jobs = await self.store.read(self.store.find, query.model_copy(update={"limit": query.limit + 1}))
        more = len(jobs) > query.limit
        jobs = jobs[: query.limit]
        rows = [summary(*current(job, active.get(job.id)), self.queue.outlook(job.id)) for job in jobs]
        summaries = [self._with_trouble(row) for row in rows]
        return Page(summaries, jobs[-1].id if more else None)

    async def show(self, job_id: str) -> JobView:
        """One job. Raises JobNotFound."""
        active = self.active.get(job_id)  # before the store: a job that ends in between has its progress in one of them
        job = await self.store.read(self.store.get, job_id)
        shown = self._with_trouble(view(*current(job, active), self.queue.outlook(job_id)))
        if self.mirror is None:
            return shown
        copied = "has nothing to copy yet" if job.is_untouched else self.mirror.describe(job_id)
        return shown.model_copy(update={"storage": copied})

    async def events(self, job_id: str, after: int = 0) -> AsyncIterator[list[Event]]:
        """The log above the number `after`, in batches, as it grows; ends with the terminal event."""
        await self._restore(job_id)
        job, active = await self.lifecycle.find(job_id)
        return read_batches(job.run_dir, after) if active is None else active.log.follow(after)

    async def events_so_far(self, job_id: str, after: int, limit: int) -> list[Event]:
        """The events that the log holds now above `after`, at most `limit` of them."""
        job = await asyncio.to_thread(self.run_dirs.find, job_id)
        events: list[Event] = []
        async for batch in self._so_far(job, after):
            events += batch
            if len(events) >= limit:
                break
        return events[:limit]

    async def log_lines(self, job_id: str, wanted: LogFilter) -> AsyncIterator[str]:
        """The lines of the log for people, as far as it goes now."""
        job = await asyncio.to_thread(self.run_dirs.find, job_id)
        return _lines(self._so_far(job), wanted)

    async def line(self, job_id: str, name: str, axis: str, points: int) -> Line:
        """One metric over the run, downsampled to so many points. Raises SeriesNotFound."""
        job = await asyncio.to_thread(self.run_dirs.find, job_id)
        await asyncio.to_thread(self.series.check, job.run_dir, name)
        return await asyncio.to_thread(self.series.line, job.run_dir, name, axis, points)

    async def lines(self, job_ids: Sequence[str], name: str, axis: str, points: int) -> list[Line | None]:
        """The same metric of several runs; none for a job that does not exist, an empty line where its task does not
        measure it. Raises SeriesNotFound."""
        table_of(name)

        def read() -> list[Line | None]:
            found = self.store.run_dirs(job_ids)
            folders = [found.get(job_id) for job_id in job_ids]
            return [None if folder is None else self.series.line(folder, name, axis, points) for folder in folders]

        return await asyncio.to_thread(read)

    async def checkpoints(self, job_id: str) -> list[CheckpointView]:
        """The checkpoints that a job has kept, oldest first."""
        job = await asyncio.to_thread(self.run_dirs.find, job_id)
        return await asyncio.to_thread(checkpoints, job.run_dir)

    async def checkpoint_file(self, job_id: str, step: str, name: str) -> BinaryIO:
        """One file of a checkpoint, open. Raises CheckpointNotFound."""
        job = await asyncio.to_thread(self.run_dirs.find, job_id)
        return await asyncio.to_thread(open_file, job.run_dir, step, name)

    async def traces(self, job_id: str) -> list[TraceView]:
        """The traces that a job has kept, oldest first."""
        job = await asyncio.to_thread(self.run_dirs.find, job_id)
        return await asyncio.to_thread(traces, job.run_dir)

    async def trace_file(self, job_id: str, name: str) -> BinaryIO:
        """The file of a trace, open. Raises TraceNotFound."""
        job = await asyncio.to_thread(self.run_dirs.find, job_id)
        return await asyncio.to_thread(open_trace, job.run_dir, name)

    async def model_file(
        self, job_id: str, which: str, form: FileFormat = "safetensors", user: str = "local"
    ) -> BinaryIO:
        """The finished model of a job, or another that it has left, open. Raises ModelNotFound, NotExportable where
        its computation is of code of its own, and what `Exports.open` raises."""
        job = await asyncio.to_thread(self.run_dirs.find, job_id)
        if form not in WEIGHTS and own_code(job.job_spec):
            raise NotExportable(
                "the model is of code of its own, which the service does not run: on a machine that has the code, "
                f"`millrace export {job_id} --format {form}` writes it"
            )
        return await self.exports.open(job.run_dir, which, form, user)

    def _so_far(self, job: Job, after: int = 0) -> AsyncIterator[list[Event]]:
        active = self.active.get(job.id)
        return read_batches(job.run_dir, after) if active is None else active.log.so_far(after)

    def _with_trouble(self, shown: S) -> S:
        """The same job, with what keeps its state from being written."""
        trouble = self.lifecycle.trouble.get(shown.id)
        return shown if trouble is None else shown.model_copy(update={"message": trouble})

    async def _restore(self, job_id: str) -> None:
        """Restore the job's run directory if it is gone."""
        if self.mirror is not None:
            await asyncio.to_thread(self.run_dirs.find, job_id)


def current(job: Job, active: ActiveJob | None) -> tuple[Job, Progress]:
    """A job and its progress.

    Whoever has read in the log that a job has ended, or is paused, also finds it so here, even while the store does not
    know it yet.
    """
    if active is None:
        return job, Progress.model_validate(job.progress or {})
    progress = active.log.progress
    has_ended = active.log.ended and not job.state.is_terminal
    if has_ended or (progress.state is State.PAUSED and job.state is State.PAUSING):
        status = final_status(job, progress)
        changed = {"state": status.state, "reason": status.reason, "message": status.message}
        job = job.model_copy(update={**changed, "finished": progress.ended if has_ended else None})
    elif progress.state is job.state is State.RUNNING:  # how many train changes without a change of the state
        job = job.model_copy(update={"message": progress.message})
    return job, progress


async def _lines(batches: AsyncIterator[list[Event]], wanted: LogFilter) -> AsyncIterator[str]:
    async for batch in batches:
        lines = [line for event in batch if (line := wanted.line(event)) is not None]
        if lines:
            yield "\n".join(lines) + "\n"
