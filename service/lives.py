"""The life of each job that has not ended: follows its log, and carries it from state to state.

The store is the truth about the state of a job, its log about what happened. A state that no coordinator writes is
written into the log first; what follows from a state follows once it stands there, whoever wrote it.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.checkpoints import resuming
from service.follow import Follower, LiveLog
from service.metrics import ServiceMetrics
from service.progress import LOST, Progress
from service.queue import Queue
from service.runs import RunHandle, Runs
from service.series import SeriesCache
from service.storage.homes import Homes
from service.store import Job, Store
from service.tracking import Tracking
from service.waiting import Claim, Rules
from trainers import RETRYING, Event, Journal, MillraceError, SpecRejected, State

LOSSES = 2
"""How often a job that lost its coordinator, with its node or the whole cluster, goes on from its last checkpoint
without having written another one since."""
DEADLINE = "DeadlineExceeded"
AT_WORK = (State.STARTING, State.RUNNING, State.RECOVERING)
HELD = (State.QUEUED, *AT_WORK)
AT_REST = (State.QUEUED, State.PAUSED)
BRING_BACK_EVERY_S = 5.0

logger = logging.getLogger(__name__)


@dataclass
class Live:
    """What is held in memory of a job that has not ended."""

    log: LiveLog
    epochs: int
    deadline: float | None = None
    """In seconds since 1970."""
    handle: RunHandle | None = None
    follower: asyncio.Task[None] | None = None


class Lives:
    """All jobs that have not ended."""

    def __init__(self, store: Store, runs: Runs, rules: Rules, poll_s: float) -> None:
        self.store = store
        self.runs = runs
        self.poll_s = poll_s
        self.live: dict[str, Live] = {}
        self.trials: dict[str, RunHandle] = {}
        """Jobs that a sweep starts and ends."""
        self.owed: dict[str, tuple[tuple[State, str, str], bool]] = {}
        """States that could not be written: the disk was full, or the database busy."""
        self.queue = Queue(store, runs, self._launch, self._reject, self._eta_s, rules, self._scale)
        self.metrics = ServiceMetrics(store.count, self._progress)
        self.series = SeriesCache()
        self.tracking: Tracking | None = None
        """Where runs are told of besides; set before the start."""
        self.homes = Homes(store)
        self.waiting: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Find again what an earlier process left."""
        for job in await asyncio.to_thread(self.store.unfinished):
            if (found := await asyncio.to_thread(self.homes.ready, job)) is not None:
                await self._recover(found)
            else:
                self.waiting.append(asyncio.create_task(self._recover_later(job), name=f"recover {job.id}"))

    async def stop(self) -> None:
        """Let go of everything; runs go on."""
        for task in [*self.waiting, *(live.follower for live in self.live.values() if live.follower)]:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self.live.clear()

    def hold(self, job: Job) -> Live:
        """Begin to hold a job."""
        limit_s = job.spec.get("deadline_s")
        deadline = None if limit_s is None or job.id in self.trials else job.created + limit_s
        live = self.live[job.id] = Live(LiveLog(job.run_dir), job.spec["epochs"], deadline)
        return live

    async def find(self, job_id: str) -> tuple[Job, Live | None]:
        """A job, and what is in memory of it: nothing once it has ended, or while a trial waits in its sweep. Waits for
        one that is just being taken in. Raises StorageUnreachable while its run directory cannot be brought back."""
        while True:
            live = self.live.get(job_id)  # before the store: whatever is removed here has ended there
            job = await asyncio.to_thread(self.store.get, job_id)
            self.homes.check(job_id)
            if job.state.is_terminal or job_id in self.trials or (live is not None and live.log.progress.seq > 0):
                return job, live
            await asyncio.sleep(self.poll_s)

    async def caught_up(self, job_id: str) -> None:
        """Until the store knows that a job is paused whose log says so."""
        while (live := self.live.get(job_id)) is not None and live.log.progress.state is State.PAUSED:
            if (await asyncio.to_thread(self.store.get, job_id)).state is not State.PAUSING:
                return
            await asyncio.sleep(self.poll_s)

    async def move(self, job_id: str, from_states: Collection[State], to: State, reason: str, message: str) -> bool:
        """Change the state in the store, if it is one of these."""
        return await asyncio.to_thread(self.store.move, job_id, from_states, to, reason, message)

    async def tell(self, job: Job, state: State, reason: str, message: str, is_written: bool = False) -> None:
        """Write a state that no coordinator writes, and do what follows from it. What hinders it now, a full disk or a
        busy database, does not hinder it for ever: `pay` tries again."""
        live = self.live[job.id]
        try:
            if not is_written:
                await self._write(job, state, reason, message)
                is_written = True
            while await live.log.read():
                pass
            await self._reached(job.id, state, reason, message)
        except Exception:
            logger.exception("could not write that job %s is %s", job.id, state, extra={"job": job.id})
            self.owed[job.id] = (state, reason, message), is_written
        else:
            self.owed.pop(job.id, None)

    def begin(self, job: Job, first: Event | None, claim: Claim) -> None:
        """A job that has just been taken in, with the first line of its log: give it its place in the queue."""
        live = self.hold(job)
        if first is None:
            self.owed[job.id] = (job.state, job.reason, job.message), False
        else:
            live.log.begin(first)
            self.queue.add(claim)

    async def _write(self, job: Job, state: State, reason: str, message: str) -> None:
        data = {"state": state, "reason": reason, "message": message}
        await self.live[job.id].log.read(lambda: _append_event(job.run_dir, data))

    async def pay(self) -> None:
        """Write what is owed."""
        for job_id, (told, is_written) in list(self.owed.items()):
            await self.tell(await asyncio.to_thread(self.store.get, job_id), *told, is_written)

    async def finish(self, job_id: str) -> None:
        """Write down the end that the log tells."""
        live = self.live[job_id]
        progress = live.log.progress
        job = await asyncio.to_thread(self.store.get, job_id)
        dump = progress.model_dump(mode="json")
        await asyncio.to_thread(self.store.finish, job_id, ended_as(job, progress), progress.ended or 0.0, dump)
        live.log.end()
        self.live.pop(job_id, None)
        self.homes.copy(job)
        self.queue.release(job_id)
        await asyncio.to_thread(self.series.keep, job.run_dir)

    def run_dirs(self) -> dict[str, Path]:
        """Where the runs of all jobs are that have not ended."""
        return {job_id: live.log.run_dir for job_id, live in list(self.live.items())}

    def follow(self, job: Job, handle: RunHandle, was_started: bool = True) -> None:
        """Follow a run's log to its end. was_started: that it wrote nothing at all is no proof of a failed start."""
        live = self.live[job.id]
        live.handle = handle
        if self.tracking is not None:
            self.tracking.follow(job)

        async def on_state(event: Event) -> bool:
            data = event.data
            return await self._reached(job.id, State(data["state"]), data.get("reason", ""), data.get("message", ""))

        async def on_lost() -> None:
            await self._sweep(job.id)
            if was_started or live.log.progress.state is not State.QUEUED:
                await self._failed(job, LOST, "the run's coordinator died")
            else:
                await self._settle(job)

        follower = Follower(live.log, handle, on_state, on_lost, self.poll_s)
        live.follower = asyncio.create_task(follower.run(), name=f"follow {job.id}")

    # -- trials of sweeps -----------------------------------------------------------------------------------------

    def adopt(self, job_id: str, handle: RunHandle) -> None:
        """Know a trial, which the store has; it is shown and followed like any other job."""
        self.trials[job_id] = handle

    async def trial_moved(self, job_id: str, state: State, reason: str, message: str) -> None:
        """What its sweep tells of a trial: that it runs, waits again, or has ended."""
        job = await asyncio.to_thread(self.store.get, job_id)
        if job.state.is_terminal:
            return
        if state is State.QUEUED:
            if job.state is not State.QUEUED:
                told = (State.QUEUED, "Interrupted", "goes on from its checkpoint when its sweep does")
                await self.move(job_id, AT_WORK, *told)
            return
        live = self.live.get(job_id) or self.hold(job)
        if live.follower is not None:  # it reads of the end itself
            return
        if not state.is_terminal:
            self.follow(job, self.trials[job_id])
            return
        while await live.log.read():
            pass
        if live.log.ended:
            await self.finish(job_id)
        else:
            await self.tell(job, state, reason, message)

    # -- what follows from a state --------------------------------------------------------------------------------

    async def _reached(self, job_id: str, state: State, reason: str, message: str) -> bool:
        """A state stands in the log. Returns whether a coordinator goes on writing."""
        if state.is_terminal:
            await self.finish(job_id)
            return False
        if state in (State.QUEUED, State.PAUSED) and job_id not in self.trials:
            await self._let_go(job_id, state, reason, message)
            return False
        allowed = HELD if job_id in self.trials else AT_WORK
        if not await self.move(job_id, allowed, state, reason, message):  # not back from a stop that was asked for
            job, handle = await asyncio.to_thread(self.store.get, job_id), self.live[job_id].handle
            if state in AT_WORK and handle is not None:  # of which a coordinator that has died may have heard alone
                await self._pass_on(job.state, handle)
        if state is State.RUNNING:
            self.queue.settled(job_id)
        return True

    async def _let_go(self, job_id: str, state: State, reason: str, message: str) -> None:
        """Nobody runs the job: it waits, or is paused, or what was asked for meanwhile happens."""
        live = self.live[job_id]
        live.handle = live.follower = None
        self.queue.release(job_id)
        allowed = (*HELD, State.PAUSING) if state is State.PAUSED else HELD
        moved = await self.move(job_id, allowed, state, reason, message)
        job = await asyncio.to_thread(self.store.get, job_id)
        self.homes.copy(job)
        if moved and state is State.QUEUED:
            self.queue.add(self.queue.claim(job))
        elif not moved and job.state is State.CANCELLING:
            await self.tell(job, State.CANCELLED, job.reason, job.message)
        elif not moved and job.state is State.PAUSING:
            await self.tell(job, State.PAUSED, "Paused", "paused; goes on from its last checkpoint")

    async def _failed(self, job: Job, reason: str, message: str, hopeless: bool = False) -> None:
        """A run ended without a word of its own, or did not begin. To lose a coordinator, which Ray starts again as
        long as there is a node for it, is no failure of the job's: that has a budget of its own."""
        state = (await asyncio.to_thread(self.store.get, job.id)).state
        progress = self.live[job.id].log.progress
        lost = reason == LOST and progress.losses < LOSSES
        if state is State.PAUSING:
            await self.tell(job, State.PAUSED, reason, f"{message} while it stopped; goes on from its last checkpoint")
        elif state is State.CANCELLING and reason == LOST:
            await self.tell(job, State.CANCELLED, reason, f"{message} while it stopped")
        elif state is not State.CANCELLING and not hopeless and (lost or progress.retries < job.spec.get("retries", 0)):
            told = f"{reason}: {message}; starts again from its last checkpoint"
            await self.tell(job, State.QUEUED, LOST if lost else RETRYING, told)
        else:
            kept = "; what checkpoints it wrote are in the run directory" if reason == LOST else ""
            await self.tell(job, State.FAILED, reason, message + kept)

    async def _launch(self, job_id: str) -> None:
        """Start an admitted job; the queue has moved it to STARTING."""
        job = await asyncio.to_thread(self.store.get, job_id)
        since = self.live[job_id].log.progress.ended  # when it was queued, or queued again
        self.metrics.queue_wait.observe(max(0.0, time.time() - (since or job.created)))
        try:
            handle = await asyncio.to_thread(self._start_run, job, self.live[job_id].log.progress)
        except Exception as error:
            logger.exception("could not start job %s", job_id, extra={"job": job_id})
            await self._sweep(job_id)
            reason = error.reason if isinstance(error, MillraceError) else "StartFailed"
            told = f"the run could not be started: {error}"
            await self._failed(job, reason, told, isinstance(error, SpecRejected))
            return
        self.follow(job, handle)
        await self._pass_on((await asyncio.to_thread(self.store.get, job_id)).state, handle)

    def _start_run(self, job: Job, progress: Progress) -> RunHandle:
        if progress.seq > 1:  # it ran before: what is left of that has names that are needed again
            self.runs.sweep_run(job.id)
        job = self.homes.find(job.id)
        spec = resuming(job.job_spec.train, job.run_dir)
        return self.runs.start_run(job.id, spec, job.run_dir, progress.retries < job.spec.get("retries", 0))

    async def _pass_on(self, state: State, handle: RunHandle) -> None:
        """Tell a run what was asked for while nobody could tell it."""
        if state is State.CANCELLING:
            await asyncio.to_thread(handle.cancel)
        elif state is State.PAUSING:
            await asyncio.to_thread(handle.pause)

    async def _reject(self, job_id: str, reason: str, message: str) -> None:
        """The preflight found out that a waiting job cannot run."""
        if await self.move(job_id, (State.QUEUED,), State.STARTING, reason, message):
            await self.tell(await asyncio.to_thread(self.store.get, job_id), State.FAILED, reason, message)

    async def _scale(self, job_id: str, workers: int) -> bool:
        live = self.live.get(job_id)
        if live is None or live.handle is None or live.log.progress.state is not State.RUNNING:
            return False
        try:
            await asyncio.to_thread(live.handle.scale, workers)
        except Exception:  # it is about to end, or cannot have so many
            logger.exception("could not scale job %s to %d workers", job_id, workers, extra={"job": job_id})
            return False
        return True

    async def _sweep(self, job_id: str) -> None:
        try:
            await asyncio.to_thread(self.runs.sweep_run, job_id)
        except Exception:  # what is left must not keep the job from ending
            logger.exception("could not clean up after job %s", job_id, extra={"job": job_id})

    def _progress(self) -> dict[str, Progress]:
        return {job_id: live.log.progress for job_id, live in list(self.live.items())}

    def _eta_s(self, job_id: str) -> float | None:
        live = self.live.get(job_id)
        return None if live is None else live.log.progress.eta_s(live.epochs)

    # -- after a restart ------------------------------------------------------------------------------------------

    async def _recover_later(self, job: Job) -> None:
        while (found := await asyncio.to_thread(self.homes.ready, job)) is None:  # noqa: ASYNC110
            await asyncio.sleep(BRING_BACK_EVERY_S)
        await self._recover(found)

    async def _recover(self, job: Job) -> None:
        """Take up a job that an earlier process left in any state."""
        live = self.hold(job)
        handle = await asyncio.to_thread(self.runs.find_run, job.id)  # before the log: without a writer, it is final
        while await live.log.read():
            pass
        told = live.log.progress
        if live.log.ended:
            await self.finish(job.id)
        elif told.state is State.PAUSED or (told.state is State.QUEUED and (handle is None or told.retries)):
            await self._settle(job)  # its coordinator, if there is one, has said its last word
        elif handle is None and job.state in AT_REST:
            await self._settle(job)  # its log came back from a copy that had not heard of that
        elif handle is None:
            await self._sweep(job.id)
            await self._failed(job, LOST, "the run's coordinator died")
        else:
            self.queue.occupy(job, len(told.workers))
            if told.state not in (State.QUEUED, State.PAUSED):
                await self.move(job.id, HELD, told.state, told.reason, told.message)
            self.follow(job, handle, was_started=False)
            await self._pass_on(job.state, handle)

    async def _settle(self, job: Job) -> None:
        """Nobody runs the job, and its log knows it: at most, it does not know yet why."""
        job = await asyncio.to_thread(self.store.get, job.id)
        told = self.live[job.id].log.progress
        match job.state:
            case State.CANCELLING:
                await self.tell(job, State.CANCELLED, job.reason, job.message)
            case State.PAUSING | State.PAUSED:
                await self.tell(job, State.PAUSED, "Paused", job.message, told.state is State.PAUSED)
            case State.QUEUED:
                is_written = told.seq > 0 and told.state is State.QUEUED
                await self.tell(job, State.QUEUED, job.reason, job.message, is_written)
            case _ if told.state is State.PAUSED:
                await self.tell(job, State.PAUSED, told.reason, told.message, is_written=True)
            case _:
                await self._sweep(job.id)
                await self.move(job.id, (job.state,), State.QUEUED, told.reason, told.message)
                await self.tell(job, State.QUEUED, told.reason, told.message, is_written=told.seq > 0)


def ended_as(job: Job, progress: Progress) -> tuple[State, str, str]:
    """State, reason and message of a job whose log has ended. Only the service knows of deadlines."""
    if progress.state is State.CANCELLED and job.reason == DEADLINE:
        return State.CANCELLED, DEADLINE, job.message
    return progress.state, progress.reason, progress.message


def deadline_told(limit_s: float) -> str:
    """What a job is told whose deadline has passed."""
    return f"stopped, with a checkpoint if it had begun: its deadline, {limit_s:g} s after its submission, has passed"


def overdue(lives: Lives) -> list[str]:
    """Jobs whose deadline has passed; each is named once."""
    now = time.time()
    found = [job_id for job_id, live in lives.live.items() if live.deadline is not None and live.deadline < now]
    for job_id in found:
        lives.live[job_id].deadline = None
    return found


def begin_log(job: Job) -> Event | None:
    """Write the first line of a new job's log; none where the disk is full. It blocks. The store holds the job already,
    safe from the machine's end, so the line need not be: what is not there, a restart writes."""
    data = {"state": job.state, "reason": job.reason, "message": job.message}
    try:
        return Journal.begin(job.run_dir, "state", data)
    except OSError:
        logger.exception("could not begin the log of job %s", job.id, extra={"job": job.id})
        return None


def _append_event(run_dir: Path, data: dict[str, Any]) -> Event:
    run_dir.mkdir(parents=True, exist_ok=True)
    journal = Journal(run_dir)
    event = journal.append("state", data)
    journal.close()
    return event
