"""The manager: takes jobs in, starts them in turn, follows their logs, and finds everything again after a restart."""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from service.errors import NeverFits, StateConflict
from service.follow import Follower, LiveLog, read_batches
from service.progress import Progress, log_line
from service.queue import Queue
from service.runs import RunHandle, Runs
from service.spec import JobSpec
from service.store import Job, Query, Store
from trainers import Event, Journal, Metrics, MillraceError, Resources, Result, State

CANCEL = "CancelRequested"
NOT_STARTED = "cancelled before it started"

logger = logging.getLogger(__name__)


class JobSummary(BaseModel):
    """A job in a list."""

    id: str
    name: str
    labels: dict[str, str]
    priority: int
    algorithm: str
    state: State
    reason: str
    """Why it is in this state, as one CamelCase word."""
    message: str
    """The same as a sentence."""
    created: float
    """Seconds since 1970."""
    finished: float | None
    """Seconds since 1970; null while it has not ended."""
    progress: float
    """0 to 1: how much of the training is done."""
    eta_s: float | None
    """Seconds until the last epoch ends at the mean pace so far; null while nothing is known."""


class JobView(JobSummary):
    """A job with all that is known of it now."""

    spec: JobSpec
    """As submitted, with every default filled in and every path absolute."""
    metrics: Metrics | None
    """The last report over all workers."""
    evaluation: dict[str, Any] | None
    """The last evaluation on the test set."""
    workers: int
    """Workers that train now."""
    run_dir: str
    result: Result
    """How it ended, or how far it has come, in the form in which `millrace run -o json` prints it."""


@dataclass(frozen=True)
class Page:
    """Some jobs, and the token for those that follow."""

    jobs: list[JobSummary]
    next_page_token: str | None


@dataclass
class Live:
    """What the manager holds in memory of a job that has not ended."""

    log: LiveLog
    handle: RunHandle | None = None
    follower: asyncio.Task[None] | None = None


class JobManager:
    """All jobs of one service. Its methods run on one event loop; what blocks runs in threads."""

    def __init__(self, store: Store, runs: Runs, runs_dir: Path, base: Path, poll_s: float = 0.1) -> None:
        self.store = store
        self.runs = runs
        self.runs_dir = runs_dir
        self.base = base
        self.poll_s = poll_s
        self.live: dict[str, Live] = {}
        self.queue = Queue(store, runs, self._launch, self._reject)
        self.queue_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Find again what an earlier process left, and begin to admit."""
        for job in await asyncio.to_thread(self.store.unfinished):
            await self._recover(job)
        self.queue_task = asyncio.create_task(self.queue.run(), name="queue")

    async def stop(self) -> None:
        """Let go of everything; runs go on."""
        await self.queue.close()
        tasks = [live.follower for live in self.live.values() if live.follower] + [self.queue_task]
        for task in tasks:
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self.live.clear()

    async def num_queued(self) -> int:
        """Jobs that wait."""
        return len(await asyncio.to_thread(self.store.queued))

    async def check(self, spec: JobSpec) -> JobSpec:
        """A dry run: the spec as it would be run. Raises NeverFits where the cluster could never start it."""
        spec = spec.resolved(self.base)
        needs, total = await asyncio.to_thread(self._sizes, spec)
        if not needs.fits(total):
            raise NeverFits(
                f"the job needs {needs.cpus:g} CPUs and {needs.gpus:g} GPUs at once, the cluster has {total.cpus:g} "
                f"and {total.gpus:g}; ask for fewer workers or for less a worker"
            )
        return spec

    async def submit(self, spec: JobSpec, key: str | None = None) -> tuple[JobView, bool]:
        """Take a job in. With a key that came before, the job that it stands for. Returns whether it is new."""
        spec = await self.check(spec)
        digest = hashlib.sha256(spec.model_dump_json().encode()).hexdigest()
        job, is_new = await asyncio.to_thread(self.store.add, spec, self.runs_dir, key, digest)
        if is_new:
            self.live[job.id] = Live(LiveLog(job.run_dir))
            await self._append(job, State.QUEUED, job.reason, job.message)
            self.queue.add(job.id)
        return await self.show(job.id), is_new

    async def page(self, query: Query) -> Page:
        """A page of jobs, newest first."""
        live = dict(self.live)
        jobs = await asyncio.to_thread(self.store.find, query.model_copy(update={"limit": query.limit + 1}))
        more = len(jobs) > query.limit
        jobs = jobs[: query.limit]
        summaries = [JobSummary(**_summary(job, _progress(job, live.get(job.id)))) for job in jobs]
        return Page(summaries, jobs[-1].id if more else None)

    async def show(self, job_id: str) -> JobView:
        """One job. Raises JobNotFound."""
        live = self.live.get(job_id)  # before the store: a job that ends in between has its figures in one of them
        job = await asyncio.to_thread(self.store.get, job_id)
        progress = _progress(job, live)
        result = progress.result_so_far(job.id, job.spec)
        return JobView(
            **_summary(job, progress),
            spec=job.job_spec,
            metrics=progress.metrics,
            evaluation=progress.evaluation,
            workers=result.workers if job.state in (State.STARTING, State.RUNNING, State.CANCELLING) else 0,
            run_dir=str(job.run_dir),
            result=result.model_copy(update={"state": job.state, "message": job.message}),
        )

    async def cancel(self, job_id: str) -> JobView:
        """Stop a job: a waiting one at once, a running one cleanly. Raises StateConflict when it has ended."""
        job, _ = await self._find(job_id)
        if await self._move(job_id, State.QUEUED, State.CANCELLING, CANCEL, NOT_STARTED):
            await self._end(job, State.CANCELLED, CANCEL, NOT_STARTED)
            return await self.show(job_id)
        active = (State.STARTING, State.RUNNING)
        told = (CANCEL, "stops with a checkpoint")
        if await asyncio.to_thread(self.store.move, job_id, active, State.CANCELLING, *told):
            live = self.live.get(job_id)
            if live is not None and live.handle is not None:  # else it is being started, and hears of it then
                await asyncio.to_thread(live.handle.cancel)
            return await self.show(job_id)
        job = await asyncio.to_thread(self.store.get, job_id)
        if job.state.is_terminal:
            raise StateConflict(f"job {job_id} is {job.state}; only a job that has not ended can be cancelled")
        return await self.show(job_id)  # it is being cancelled already

    async def events(self, job_id: str, after: int = 0) -> AsyncIterator[list[Event]]:
        """The log above the number `after`, in batches, as it grows; ends with the terminal event."""
        job, live = await self._find(job_id)
        return read_batches(job.run_dir, after) if live is None else live.log.follow(after)

    async def events_so_far(self, job_id: str, after: int, limit: int) -> list[Event]:
        """What the log holds now above `after`, at most `limit` events."""
        job = await asyncio.to_thread(self.store.get, job_id)
        events: list[Event] = []
        async for batch in read_batches(job.run_dir, after):
            events += batch
            if len(events) >= limit:
                break
        return events[:limit]

    async def log_lines(self, job_id: str) -> AsyncIterator[str]:
        """The log's lines for people, as far as it goes now."""
        job = await asyncio.to_thread(self.store.get, job_id)
        return _lines(job.run_dir)

    def _sizes(self, spec: JobSpec) -> tuple[Resources, Resources]:
        return self.runs.needs(spec.train), self.runs.total_resources()

    async def _find(self, job_id: str) -> tuple[Job, Live | None]:
        """A job, and what is in memory of it: nothing once it has ended. Waits for one that is just being taken in."""
        while True:
            live = self.live.get(job_id)  # before the store: whatever is removed here has ended there
            job = await asyncio.to_thread(self.store.get, job_id)
            if job.state.is_terminal or (live is not None and live.log.progress.seq > 0):
                return job, live
            await asyncio.sleep(self.poll_s)

    async def _move(self, job_id: str, from_state: State, to: State, reason: str, message: str) -> bool:
        return await asyncio.to_thread(self.store.move, job_id, (from_state,), to, reason, message)

    async def _append(self, job: Job, state: State, reason: str, message: str) -> None:
        """Write a state into a log that no coordinator writes to."""
        data = {"state": state, "reason": reason, "message": message}
        await asyncio.to_thread(_append_event, job.run_dir, data)
        if (live := self.live.get(job.id)) is not None:
            while await live.log.read():
                pass

    async def _end(self, job: Job, state: State, reason: str, message: str) -> None:
        """End a job that no coordinator will end."""
        await self._append(job, state, reason, message)
        await self._finished(job.id)

    async def _finished(self, job_id: str) -> None:
        """Write down the end that the log tells."""
        live = self.live[job_id]
        progress = live.log.progress
        told = (progress.state, progress.reason, progress.message)
        dump = progress.model_dump(mode="json")
        await asyncio.to_thread(self.store.finish, job_id, told, progress.ended or 0.0, dump)
        live.log.end()
        del self.live[job_id]
        self.queue.release(job_id)

    async def _launch(self, job: Job) -> None:
        """Start an admitted job; the queue has moved it to STARTING."""
        try:
            handle = await asyncio.to_thread(self.runs.start_run, job.id, job.job_spec.train, job.run_dir)
        except Exception as error:
            logger.exception("could not start job %s", job.id)
            await self._sweep(job)
            reason = error.reason if isinstance(error, MillraceError) else "StartFailed"
            await self._end(job, State.FAILED, reason, f"the run could not be started: {error}")
            return
        self._follow(job, handle)
        if (await asyncio.to_thread(self.store.get, job.id)).state is State.CANCELLING:
            await asyncio.to_thread(handle.cancel)

    async def _reject(self, job: Job, reason: str, message: str) -> None:
        """The preflight found out that a waiting job cannot run."""
        if await self._move(job.id, State.QUEUED, State.STARTING, reason, message):
            await self._end(job, State.FAILED, reason, message)

    def _follow(self, job: Job, handle: RunHandle) -> None:
        live = self.live[job.id]
        live.handle = handle

        async def on_state(event: Event) -> None:
            await self._note_state(job.id, event)

        async def on_lost() -> None:
            await self._lost(job)

        follower = Follower(live.log, handle, on_state, on_lost, self.poll_s)
        live.follower = asyncio.create_task(follower.run(), name=f"follow {job.id}")

    async def _note_state(self, job_id: str, event: Event) -> None:
        state = State(event.data["state"])
        if state.is_terminal:
            await self._finished(job_id)
            return
        # A run that hears of its cancelling late may still report that it started.
        allowed = [State.STARTING, State.RUNNING] + ([State.CANCELLING] if state is State.CANCELLING else [])
        told = event.data.get("reason", ""), event.data.get("message", "")
        await asyncio.to_thread(self.store.move, job_id, allowed, state, *told)
        if state is State.RUNNING:
            self.queue.settled(job_id)

    async def _lost(self, job: Job) -> None:
        """The coordinator is gone and its log has no end."""
        await self._sweep(job)
        told = "the run's coordinator died; what checkpoints it wrote are in the run directory"
        await self._end(job, State.FAILED, "CoordinatorLost", told)

    async def _sweep(self, job: Job) -> None:
        try:
            await asyncio.to_thread(self.runs.sweep_run, job.id)
        except Exception:  # what is left must not keep the job from ending
            logger.exception("could not clean up after job %s", job.id)

    async def _recover(self, job: Job) -> None:
        """Take up a job that an earlier process left in any state."""
        live = self.live[job.id] = Live(LiveLog(job.run_dir))
        handle = await asyncio.to_thread(self.runs.find_run, job.id)  # before the log: without a writer, it is final
        while await live.log.read():
            pass
        if live.log.ended:
            await self._finished(job.id)
        elif handle is not None:
            self.queue.occupy(job)
            await self._catch_up(job, live)
            self._follow(job, handle)
            if job.state is State.CANCELLING:  # the request may have died with the process that took it
                await asyncio.to_thread(handle.cancel)
        elif job.state is State.CANCELLING and live.log.progress.state is State.QUEUED:
            await self._end(job, State.CANCELLED, job.reason, job.message)
        elif live.log.progress.state is State.QUEUED:
            if await self._move(job.id, State.STARTING, State.QUEUED, "Requeued", "waits for its turn"):
                await self._sweep(job)
            if live.log.progress.seq == 0:
                await self._append(job, State.QUEUED, job.reason, job.message)
            self.queue.add(job.id)
        else:
            await self._lost(job)

    async def _catch_up(self, job: Job, live: Live) -> None:
        """Give the store the state that the log reached while nobody looked."""
        progress = live.log.progress
        if progress.state in (State.STARTING, State.RUNNING, State.CANCELLING):
            allowed = (State.QUEUED, State.STARTING, State.RUNNING)
            told = (progress.state, progress.reason, progress.message)
            await asyncio.to_thread(self.store.move, job.id, allowed, *told)


def _progress(job: Job, live: Live | None) -> Progress:
    return live.log.progress if live is not None else Progress.model_validate(job.progress or {})


def _append_event(run_dir: Path, data: dict[str, Any]) -> None:
    run_dir.mkdir(parents=True, exist_ok=True)
    journal = Journal(run_dir)
    journal.append("state", data)
    journal.close()


async def _lines(run_dir: Path) -> AsyncIterator[str]:
    async for batch in read_batches(run_dir):
        lines = [line for event in batch if (line := log_line(event)) is not None]
        if lines:
            yield "\n".join(lines) + "\n"


def _summary(job: Job, progress: Progress) -> dict[str, Any]:
    epochs = job.spec["epochs"]
    return {
        **job.model_dump(
            include={"id", "name", "labels", "priority", "state", "reason", "message", "created", "finished"}
        ),
        "algorithm": job.spec["algorithm"]["name"],
        "progress": progress.share(epochs),
        "eta_s": progress.eta_s(epochs),
    }
