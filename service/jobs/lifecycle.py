"""The lifecycle of a job that has not ended: which status follows from which event.

The store is the truth about the status of a job, and its log is the truth about what happened. A status that no
coordinator writes is written into the log first. What follows from a status happens once it is in the log, whoever
wrote it.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from service.database.identity import Requester
from service.database.job_store import Job, Store
from service.jobs.active_jobs import ActiveJob, ActiveJobs
from service.jobs.follower import Follower
from service.jobs.metric_series import SeriesCache
from service.jobs.progress import LOST, Progress
from service.jobs.queueing.claims import Claim
from service.jobs.queueing.queue import JobQueue
from service.jobs.runs import RunHandle, Runs
from service.status import Status, append_status, submission
from service.storage.run_dirs import RunDirs
from service.tracking.tracker import Tracking
from trainers import NO_ROOM, RETRYING, Event, State

LOSSES = 2
"""How often a job that loses its coordinator, with its node or the whole cluster, goes on from its last checkpoint
without writing another one in between."""
DEADLINE = "DeadlineExceeded"
AT_WORK = (State.STARTING, State.RUNNING, State.RECOVERING)
HELD = (State.QUEUED, *AT_WORK)
AT_REST = (State.QUEUED, State.PAUSED)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sinks:
    """Where a run goes besides its own directory."""

    run_dirs: RunDirs
    """Copies of run directories."""
    series: SeriesCache
    """Metric series for charts."""
    trackers: Sequence[Tracking]
    """MLflow and the like."""


class Lifecycle:
    """Carries the active jobs from status to status."""

    def __init__(
        self, store: Store, runs: Runs, active: ActiveJobs, queue: JobQueue, sinks: Sinks, poll_s: float
    ) -> None:
        self.store = store
        self.runs = runs
        self.active = active
        self.queue = queue
        self.sinks = sinks
        self.poll_s = poll_s
        self.pending_writes: dict[str, tuple[Status, bool]] = {}
        """Statuses that could not be recorded because the disk was full or the database busy, and whether the log has
        them."""
        self.trouble: dict[str, str] = {}
        """Why that is so, in a sentence."""
        self.recording: Counter[str] = Counter()
        """How many statuses of a job are just being recorded."""

    # -- reading --------------------------------------------------------------------------------------------------

    async def find(self, job_id: str) -> tuple[Job, ActiveJob | None]:
        """A job and what is in memory of it, which is nothing once it has ended, or while a trial waits in its sweep.

        Waits for a job that is just being submitted. Raises StorageUnreachable while its run directory cannot be
        restored, and SpecUnreadable.
        """
        while True:
            active = self.active.get(job_id)  # before the store: a job that is removed here has ended there
            job = await asyncio.to_thread(self.store.get, job_id)
            self.sinks.run_dirs.check(job_id)
            is_trial = job_id in self.active.trials
            if job.state.is_terminal or is_trial or (active is not None and active.log.progress.seq > 0):
                return job, active
            if active is None:
                self.queue.claim(job)  # nobody takes up one whose spec cannot be read
            await asyncio.sleep(self.poll_s)

    async def caught_up(self, job_id: str) -> None:
        """Wait until the store knows that a job is paused, or has ended, whose log says so."""
        while (active := self.active.get(job_id)) is not None:
            told, known = active.log.progress.state, (await asyncio.to_thread(self.store.get, job_id)).state
            if not told.is_terminal and (told, known) != (State.PAUSED, State.PAUSING):
                return
            await asyncio.sleep(self.poll_s)

    # -- recording ------------------------------------------------------------------------------------------------

    def begin(self, job: Job, claim: Claim, by: Requester | None = None) -> None:
        """Put a job into the queue that was submitted, and has done nothing yet. by: Who has submitted it."""
        (self.active.get(job.id) or self.active.add(job)).log.begin(first_event(job, by))
        self.queue.add(claim)

    async def move(self, job_id: str, from_states: Collection[State], status: Status) -> bool:
        """Change the status in the store, if the job is in one of these states. Returns whether it was."""
        return await asyncio.to_thread(self.store.move, job_id, from_states, status)

    async def record_state(self, job: Job, status: Status, is_written: bool = False) -> None:
        """Write a status that no coordinator writes into the log, and do what follows from it.

        If a full disk or a busy database prevents that now, `flush` tries again. is_written: The log has it already.
        """
        active = self.active[job.id]
        try:
            with self._recording(job.id):
                if not is_written:
                    requests, active.requests = active.requests, []
                    await active.log.read(lambda: append_status(job.run_dir, status, requests))
                    is_written = True
                while await active.log.read():
                    pass
                await self.reached(job.id, status)
        except Exception as error:
            logger.exception("could not write that job %s is %s", job.id, status.state, extra={"job": job.id})
            self.pending_writes[job.id] = status, is_written
            self.trouble[job.id] = f"will be {status.state}, which cannot be written now: {error}"
        else:
            self.pending_writes.pop(job.id, None)
            self.trouble.pop(job.id, None)

    @contextlib.contextmanager
    def _recording(self, job_id: str) -> Iterator[None]:
        """Somebody is just recording a status of the job."""
        self.recording[job_id] += 1
        try:
            yield
        finally:
            self.recording -= Counter((job_id,))

    def is_recording(self, job_id: str) -> bool:
        """Whether a status is being recorded, or waits until it can be."""
        return job_id in self.recording or job_id in self.pending_writes

    async def note(self, job_id: str, action: str, by: Requester | None, **what: Any) -> None:
        """Have the log tell what somebody has asked of an active job, once there is somebody who writes it."""
        active = self.active.get(job_id)
        if by is None or active is None or job_id in self.active.trials:
            return
        request = {"action": action, "by": by.model_dump(mode="json"), **what}
        if active.handle is None:
            active.requests.append(request)
        else:
            await asyncio.to_thread(_tell, active.handle, [request])

    async def flush(self) -> None:
        """Try to record what could not be recorded before."""
        for job_id, (status, is_written) in list(self.pending_writes.items()):
            await self.record_state(await asyncio.to_thread(self.store.get, job_id), status, is_written)

    async def finish(self, job_id: str) -> None:
        """Store the end that the log reports."""
        active = self.active[job_id]
        progress = active.log.progress
        job = await asyncio.to_thread(self.store.get, job_id)
        dump = progress.model_dump(mode="json")
        await asyncio.to_thread(self.store.finish, job_id, final_status(job, progress), progress.ended or 0.0, dump)
        active.log.end()
        self.active.remove(job_id)
        self.sinks.run_dirs.copy(job)
        self.queue.release(job_id)
        await asyncio.to_thread(self.sinks.series.keep, job.run_dir)

    # -- what follows from a status -------------------------------------------------------------------------------

    def follow(self, job: Job, handle: RunHandle, was_started: bool = True) -> None:
        """Follow a run's log to its end.

        was_started: This process started the run. Otherwise an empty log does not prove that the start failed.
        """
        active = self.active[job.id]
        active.handle = handle
        requests, active.requests = active.requests, []
        _tell(handle, requests)
        for tracker in self.sinks.trackers:
            tracker.follow(job)

        async def on_state(status: Status) -> bool:
            return await self.reached(job.id, status)

        async def on_lost() -> None:
            await self.clean_up(job.id)
            if was_started or active.log.progress.state is not State.QUEUED:
                await self.failed(job, LOST, "the run's coordinator died")
            else:
                await self.settle(job)

        follower = Follower(active.log, handle, on_state, on_lost, self.poll_s)
        active.follower = asyncio.create_task(follower.run(), name=f"follow {job.id}")

    async def reached(self, job_id: str, status: Status) -> bool:
        """The log has a status. Returns whether a coordinator goes on writing."""
        with self._recording(job_id):
            return await self._follow_from(job_id, status)

    async def _follow_from(self, job_id: str, status: Status) -> bool:
        if status.state.is_terminal:
            await self.finish(job_id)
            return False
        if status.state in AT_REST and job_id not in self.active.trials:
            await self._let_go(job_id, status)
            return False
        allowed = HELD if job_id in self.active.trials else AT_WORK
        if not await self.move(job_id, allowed, status):  # a stop that was requested stays requested
            job, handle = await asyncio.to_thread(self.store.get, job_id), self.active[job_id].handle
            if status.state in AT_WORK and handle is not None:  # an earlier coordinator may have died with the request
                await self.forward_request(job.state, handle)
        if status.state is State.RUNNING:
            self.queue.settled(job_id)
        return True

    async def _let_go(self, job_id: str, status: Status) -> None:
        """No coordinator runs the job any more: it waits, is paused, or ends as was requested in the meantime."""
        active = self.active[job_id]
        active.handle = active.follower = None
        self.queue.release(job_id)
        allowed = (*HELD, State.PAUSING) if status.state is State.PAUSED else HELD
        moved = await self.move(job_id, allowed, status)
        job = await asyncio.to_thread(self.store.get, job_id)
        self.sinks.run_dirs.copy(job)
        if moved and status.state is State.QUEUED:
            self.queue.add(self.queue.claim(job))
        elif not moved and job.state is State.CANCELLING:
            await self.record_state(job, Status(State.CANCELLED, job.reason, job.message))
        elif not moved and job.state is State.PAUSING:
            paused = Status(State.PAUSED, "Paused", "paused; goes on from its last checkpoint")
            await self.record_state(job, paused)

    async def failed(self, job: Job, reason: str, message: str, is_hopeless: bool = False) -> None:
        """A run ended without a last state, or did not start.

        The loss of a coordinator, which Ray restarts as long as there is a node for it, is not the job's own failure
        and has a retry budget of its own.
        """
        state = (await asyncio.to_thread(self.store.get, job.id)).state
        progress = self.active[job.id].log.progress
        is_lost = reason == LOST and progress.losses < LOSSES
        may_retry = is_lost or progress.retries < job.spec.get("retries", 0)
        if state is State.PAUSING:
            message = f"{message} while it stopped; goes on from its last checkpoint"
            await self.record_state(job, Status(State.PAUSED, reason, message))
        elif state is State.CANCELLING and reason == LOST:
            await self.record_state(job, Status(State.CANCELLED, reason, f"{message} while it stopped"))
        elif state is not State.CANCELLING and not is_hopeless and may_retry:
            message = f"{reason}: {message}; starts again from its last checkpoint"
            await self.record_state(job, Status(State.QUEUED, LOST if is_lost else RETRYING, message))
        else:
            hint = "; what checkpoints it wrote are in the run directory" if reason == LOST else ""
            await self.record_state(job, Status(State.FAILED, reason, message + hint))

    async def reject(self, job_id: str, reason: str, message: str) -> None:
        """The preflight has found that a waiting job cannot run."""
        if await self.move(job_id, (State.QUEUED,), Status(State.STARTING, reason, message)):
            job = await asyncio.to_thread(self.store.get, job_id)
            await self.record_state(job, Status(State.FAILED, reason, message))

    async def settle(self, job: Job) -> None:
        """Bring a job that no coordinator runs to rest. Its log knows that it rests, but may not know why."""
        job = await asyncio.to_thread(self.store.get, job.id)
        progress = self.active[job.id].log.progress
        match job.state:
            case State.CANCELLING:
                await self.record_state(job, Status(State.CANCELLED, job.reason, job.message))
            case State.PAUSING | State.PAUSED:
                paused = Status(State.PAUSED, "Paused", job.message)
                await self.record_state(job, paused, is_written=progress.state is State.PAUSED)
            case State.QUEUED:
                is_written = progress.seq > 0 and progress.state is State.QUEUED
                await self.record_state(job, job.status, is_written)
            case _ if progress.state is State.PAUSED:
                await self.record_state(job, progress.status, is_written=True)
            case _:
                await self.clean_up(job.id)
                queued = Status(State.QUEUED, progress.reason, progress.message)
                await self.move(job.id, (job.state,), queued)
                await self.record_state(job, queued, is_written=progress.seq > 0)

    async def forward_request(self, state: State, handle: RunHandle) -> None:
        """Pass on to a run what was requested while there was no coordinator to hear it."""
        if state is State.CANCELLING:
            await asyncio.to_thread(handle.cancel)
        elif state is State.PAUSING:
            await asyncio.to_thread(handle.pause)

    async def clean_up(self, job_id: str) -> None:
        """Remove what a dead coordinator left. A failure to do so must not keep the job from ending."""
        try:
            await asyncio.to_thread(self.runs.cleanup_run, job_id)
        except Exception:
            logger.exception("could not clean up after job %s", job_id, extra={"job": job_id})


def _tell(handle: RunHandle, requests: list[dict[str, Any]]) -> None:
    """Have a run write down what was asked of it. What was asked counts, also where it cannot be written."""
    for request in requests:
        try:
            handle.note(request)
        except Exception:
            logger.exception("could not write down %s", request)


def first_event(job: Job, by: Requester | None) -> Event:
    """The first event of a job's log. by: Who has submitted it."""
    return submission(job.created, None if by is None else by.model_dump(mode="json"))


def final_status(job: Job, progress: Progress) -> Status:
    """The status of a job whose log has ended. Only the service knows of deadlines."""
    if progress.state is State.CANCELLED and job.reason == DEADLINE:
        return Status(State.CANCELLED, DEADLINE, job.message)
    return progress.status


def deadline_message(job: Job) -> str:
    """What is said of a job that its deadline has stopped."""
    passed = f"its deadline, {job.spec['deadline_s']:g} s after its submission, has passed"
    awaited = f"; it still {job.message}" if job.reason == NO_ROOM else ""
    return f"stopped, with a checkpoint if it had begun: {passed}{awaited}"
