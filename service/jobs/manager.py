"""The manager of jobs: submits, shows, cancels, pauses, resumes, scales and forks them."""

import asyncio
import contextlib
import hashlib
import logging
import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from service.database.identity import Requester
from service.database.job_changes import NO_TRIAL, OF_TRIALS, JobChanges
from service.database.job_store import Job, Submission
from service.errors import LimitReached, SpecInvalid, StateConflict
from service.ids import new_job_id
from service.jobs.fork import choose, forked_spec
from service.jobs.lifecycle import AT_REST, AT_WORK, DEADLINE, Lifecycle, deadline_message
from service.jobs.queueing.claims import Quotas
from service.jobs.queueing.entrance import Entrance
from service.jobs.queueing.growth import Growth
from service.jobs.queueing.preemption import Preemption
from service.jobs.reader import JobReader, current
from service.jobs.recovery import Recovery, Watchdog
from service.jobs.removal import Removal
from service.jobs.service_metrics import ServiceMetrics
from service.jobs.starting.admission import Admission
from service.jobs.trials import TrialJobs
from service.jobs.views import JobView, view
from service.spec import JobSpec
from service.status import Status
from service.storage.checkpoints import CheckpointView, give
from service.storage.disk_use import DiskUse
from service.storage.mirror import Mirror
from trainers import State, TraceRefused

CANCEL, PAUSE, RESUME = "CancelRequested", "PauseRequested", "ResumeRequested"
NOT_STARTED = "cancelled before it started"
UPKEEP_S = 1.0
REMOVE_EVERY = 60  # upkeeps
LOOK_EVERY = 30  # likewise: between two looks of the watchdog

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ManagerConfig:
    """Where the jobs of one service are kept, and what their users may have."""

    runs_dir: Path
    base: Path
    """The folder that relative paths in specs are resolved against."""
    poll_s: float = 0.1
    quotas: Quotas = field(default_factory=Quotas)
    growth: Growth = field(default_factory=Growth)
    """What the cluster may become."""
    measure_s: float = 15.0
    """Seconds between two looks at how much of the disk the runs of each project hold."""
    audit_entries: int = 100_000
    """How many changes the audit keeps, and how many refusals."""


@dataclass(frozen=True)
class Parts:
    """What a manager works with."""

    lifecycle: Lifecycle
    preemption: Preemption
    admission: Admission
    recovery: Recovery
    watchdog: Watchdog
    trials: TrialJobs
    removal: Removal
    metrics: ServiceMetrics
    mirror: Mirror | None


class JobManager(JobReader):
    """All jobs of one service. Its methods run on one event loop; what blocks runs in threads."""

    def __init__(self, config: ManagerConfig, parts: Parts) -> None:
        super().__init__(parts.lifecycle, parts.mirror)
        self.config = config
        self.preemption = parts.preemption
        self.admission = parts.admission
        self.recovery = parts.recovery
        self.watchdog = parts.watchdog
        self.trials = parts.trials
        self.removal = parts.removal
        self.metrics = parts.metrics
        self.tasks: list[asyncio.Task[None]] = []
        self.entrance = Entrance(self.queue)

    async def start(self, admits: bool = True) -> None:
        """Take up the jobs that an earlier process left.

        admits: Begin to start jobs at once. Where sweeps are still to be taken up, what their trials hold is not known.
        """
        await self.recovery.start()
        if self.mirror is not None:
            for job_id, run_dir in (await asyncio.to_thread(self.store.run_dirs)).items():
                self.mirror.look(job_id, run_dir)
            self.mirror.start(self.active.run_dirs)
        self.tasks = [
            asyncio.create_task(self._keep_up(), name="upkeep"),
            asyncio.create_task(
                DiskUse(self.store).keep(self.queue.disk_bytes, self.config.measure_s), name="disk use"
            ),
        ]
        if admits:
            self.admit()

    def admit(self) -> None:
        """Begin to start jobs that wait."""
        self.tasks.append(asyncio.create_task(self.admission.run(), name="admission"))

    async def stop(self) -> None:
        """Let go of everything; the runs go on."""
        await self.admission.close()
        for task in self.tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self.recovery.stop()
        await self.active.close()
        if self.mirror is not None:
            await asyncio.to_thread(self.mirror.close)

    # -- submitting -----------------------------------------------------------------------------------------------

    async def check(self, spec: JobSpec, user: str = "local") -> JobSpec:
        """A dry run: the spec as it would be run.

        Raises:
            SpecInvalid: There is no such project, or it calls itself the trial of a sweep.
            NeverFits: The cluster could never start it, or its user or project may never hold so much.
        """
        if OF_TRIALS in spec.labels:
            raise SpecInvalid([NO_TRIAL])
        spec = spec.resolved(self.config.base)
        await self.entrance.check(spec, user)
        return spec

    async def submit(
        self, spec: JobSpec, key: str | None = None, user: str = "local", by: Requester | None = None
    ) -> tuple[JobView, bool]:
        """Accept a job. A key that was used before returns the job that it stands for. Returns whether it is new.

        by: Who has sent it, for its log and the audit.

        Raises:
            SpecInvalid, NeverFits: As `check` does.
            KeyReused: The key stands for another job.
            TooManyWaiting: As many of the user's jobs wait as are allowed.
        """
        spec = await self.check(spec, user)
        text = spec.model_dump_json()
        new = Submission(spec, key, _digest(key, text), user, self.config.quotas.waiting_jobs, by=by, text=text)
        return await self._accept(new)

    async def fork(
        self,
        job_id: str,
        changes: dict[str, Any],
        step: str | None = None,
        key: str | None = None,
        user: str = "local",
        by: Requester | None = None,
    ) -> tuple[JobView, bool]:
        """A new job from a checkpoint of another, the newest if none is named, with changes to its spec (a merge patch,
        RFC 7396). Returns whether it is new.

        Raises:
            StateConflict: The other has no checkpoint.
            CheckpointNotFound: It has none of that name.
            SpecInvalid: The changes are wrong.
            NeverFits, KeyReused, TooManyWaiting: As for `submit`.
        """
        job, spec, begin = await self.forked(job_id, changes, step, user)
        parent, new_id = f"{job_id}/{begin.step}", new_job_id()
        text, most = spec.model_dump_json(), self.config.quotas.waiting_jobs
        new = Submission(spec, key, _digest(key, text, parent), user, most, (new_id, parent), by, changes, text)
        # Its folder first: without the checkpoint, the job would train from the start.
        await asyncio.to_thread(give, job.run_dir, begin.step, self.config.runs_dir / new_id)
        is_new = False
        try:
            accepted, is_new = await self._accept(new)
        finally:
            if not is_new:
                await asyncio.to_thread(shutil.rmtree, self.config.runs_dir / new_id, ignore_errors=True)
        return accepted, is_new

    async def forked(
        self, job_id: str, changes: dict[str, Any], step: str | None = None, user: str = "local"
    ) -> tuple[Job, JobSpec, CheckpointView]:
        """A fork's dry run: the parent, the spec and the checkpoint to start from. Raises what `fork` does."""
        job = await asyncio.to_thread(self.run_dirs.find, job_id)
        begin = await asyncio.to_thread(choose, job, step)
        return job, await self.check(forked_spec(job, changes, begin), user), begin

    async def _accept(self, new: Submission) -> tuple[JobView, bool]:
        added = await asyncio.wrap_future(self.store.submit(new, self.config.runs_dir, may_wait=True))
        job = added.job
        if not added.is_new:
            return await self.show(job.id), False
        self.lifecycle.begin(job, self.queue.claim(job, new.spec), new.by)
        return view(*current(job, self.active.get(job.id)), self.queue.outlook(job.id), new.spec), True

    # -- stopping and resuming ------------------------------------------------------------------------------------

    async def cancel(self, job_id: str, by: Requester | None = None) -> JobView:
        """Cancel a job: at once if it waits or is paused, with a clean stop if it runs.

        Raises:
            StateConflict: It has ended.
        """
        if (trial := self.active.trials.get(job_id)) is not None:
            await asyncio.to_thread(trial.cancel)
            return await self.show(job_id)
        job, _ = await self.lifecycle.find(job_id)
        if not await self._stop(job, Status(State.CANCELLING, CANCEL, "stops with a checkpoint"), NOT_STARTED, by):
            job = await asyncio.to_thread(self.store.get, job_id)
            if job.state.is_terminal:
                raise StateConflict(f"job {job_id} is {job.state}; only a job that has not ended can be cancelled")
        return await self.show(job_id)  # it may be being cancelled already

    async def pause(self, job_id: str, by: Requester | None = None) -> JobView:
        """Pause a job so that it can go on later: at once if it waits, with a checkpoint if it runs.

        Raises:
            StateConflict: It has ended, or is being cancelled.
        """
        if (trial := self.active.trials.get(job_id)) is not None:
            await asyncio.to_thread(trial.pause)
        job, active = await self.lifecycle.find(job_id)
        waited = "paused while it waited"
        ran = "stops with a checkpoint, and goes on when it is resumed"
        if await self.lifecycle.move(job_id, (State.QUEUED,), Status(State.PAUSING, PAUSE, waited)):
            await self.lifecycle.note(job_id, "job.pause", by)
            await self.lifecycle.record_state(job, Status(State.PAUSED, PAUSE, waited))
        elif await self.lifecycle.move(job_id, AT_WORK, Status(State.PAUSING, PAUSE, ran)):
            await self.lifecycle.note(job_id, "job.pause", by)
            if active is not None and active.handle is not None:  # otherwise it is being started, and is asked then
                await asyncio.to_thread(active.handle.pause)
        else:
            job = await asyncio.to_thread(self.store.get, job_id)
            if job.state not in (State.PAUSING, State.PAUSED):
                raise StateConflict(f"job {job_id} is {job.state}; only one that waits, starts or runs can be paused")
        return await self.show(job_id)

    async def scale(self, job_id: str, workers: int, by: Requester | None = None) -> JobView:
        """Change the number of workers: of a running job soon and without a restart, of one that waits or is paused
        once it goes on.

        Raises:
            StateConflict: It has ended or is about to, or it is a sweep's trial.
            LimitReached: Its project or user is at a limit.
            SpecRejected: It cannot have so many, or so few.
            NeverFits: The cluster is too small for so many.
        """
        await self.lifecycle.caught_up(job_id)
        job, active = await self.lifecycle.find(job_id)
        if job_id in self.trials:
            raise StateConflict(f"job {job_id} is a trial of a sweep, which keeps its size; scale a job of its own")
        if job.state in AT_REST and await self._respecify(job, workers):
            await self.lifecycle.note(job_id, "job.scale", by, workers=workers)
            return await self.show(job_id)
        if job.state not in (State.RUNNING, State.RECOVERING) or active is None or active.handle is None:
            raise StateConflict(f"job {job_id} is {job.state}; only one that trains, waits or is paused can be scaled")
        if (limit := self.entrance.refuses_growth(job_id, workers)) is not None:
            raise LimitReached(f"job {job_id} cannot have {workers} workers now: {limit}")
        await asyncio.to_thread(active.handle.scale, workers)
        await self.lifecycle.note(job_id, "job.scale", by, workers=workers)
        await asyncio.to_thread(self.store.respecify, job_id, AT_WORK, job.job_spec.with_workers(workers))
        self.preemption.resized(job_id, workers)
        return await self.show(job_id)

    async def edit(self, job_id: str, changes: JobChanges, by: Requester | None = None) -> JobView:
        """Change a job's name, labels, notes or priority, or archive it. Raises StateConflict, SpecInvalid."""
        await self.lifecycle.caught_up(job_id)
        job = await asyncio.to_thread(self.store.get, job_id)
        given = changes.given
        if "priority" in given and (job.state.is_terminal or job_id in self.trials):
            raise StateConflict(f"job {job_id} has no place in the queue: it has ended, or its sweep starts it")
        if changes.archived and not job.state.is_terminal:
            raise StateConflict(f"job {job_id} is {job.state}; only one that has ended can be archived")
        await asyncio.to_thread(self.store.edit, job_id, changes)
        if "priority" in given:
            self.queue.reprioritise(job_id, changes.priority)
        await self.lifecycle.note(job_id, "job.edit", by, **changes.told)
        return await self.show(job_id)

    async def trace(self, job_id: str, steps: int, worker: int | None = None, by: Requester | None = None) -> int:
        """Have a worker of a running job, or its first, record its next steps; the number of the event that says so.

        Raises:
            StateConflict: It does not train, another trace is being recorded, or there is no such worker.
        """
        job, active = await self.lifecycle.find(job_id)
        if job_id in self.trials:
            raise StateConflict(f"job {job_id} is a trial of a sweep; trace a job with its spec")
        if job.state not in (State.RUNNING, State.RECOVERING) or active is None or active.handle is None:
            raise StateConflict(f"job {job_id} is {job.state}; only one that trains can be traced")
        try:
            event = await asyncio.to_thread(active.handle.trace, steps, worker)
        except TraceRefused as error:
            raise StateConflict(str(error)) from None
        await self.lifecycle.note(
            job_id, "job.trace", by, steps=steps, **({} if worker is None else {"worker": worker})
        )
        return event

    async def _respecify(self, job: Job, workers: int) -> bool:
        """Change how many workers a job begins with. Returns whether its state still allowed it."""
        spec = job.job_spec.with_workers(workers)
        await self.entrance.check(spec, job.user)
        if not await asyncio.to_thread(self.store.respecify, job.id, AT_REST, spec):
            return False
        if job.id in self.queue.waiting:
            self.queue.add(self.queue.claim(job, spec))
        return True

    async def resume(self, job_id: str, by: Requester | None = None) -> JobView:
        """Queue a paused job again, to go on from its checkpoint. Raises StateConflict if it is not paused."""
        await self._restore(job_id)
        job, _ = await self.lifecycle.find(job_id)
        await self.lifecycle.caught_up(job_id)
        queued = Status(State.QUEUED, RESUME, "waits for its turn to go on")
        if not await self.lifecycle.move(job_id, (State.PAUSED,), queued):
            job = await asyncio.to_thread(self.store.get, job_id)
            hint = "wait until it is PAUSED" if job.state is State.PAUSING else "only a paused job can be resumed"
            raise StateConflict(f"job {job_id} is {job.state}; {hint}")
        await self.lifecycle.note(job_id, "job.resume", by)
        await self.lifecycle.record_state(job, queued)
        return await self.show(job_id)

    async def _stop(self, job: Job, cancelling: Status, at_once: str, by: Requester | None = None) -> bool:
        """Cancel a job, at once if no coordinator runs it. Returns whether its state allowed it.

        at_once: The message where no coordinator runs it.
        """
        if await self.lifecycle.move(job.id, AT_REST, replace(cancelling, message=at_once)):
            await self.lifecycle.note(job.id, "job.cancel", by)
            await self.lifecycle.record_state(job, Status(State.CANCELLED, cancelling.reason, at_once))
            return True
        if not await self.lifecycle.move(job.id, (*AT_WORK, State.PAUSING), cancelling):
            return False
        await self.lifecycle.note(job.id, "job.cancel", by)
        active = self.active.get(job.id)
        if active is not None and active.handle is not None:  # otherwise it is being started, and is asked then
            await asyncio.to_thread(active.handle.cancel)
        return True

    # -- upkeep ---------------------------------------------------------------------------------------------------

    async def _keep_up(self) -> None:
        """Again and again: record what is pending, stop overdue jobs, remove expired ones."""
        turn = 0
        while True:
            try:
                await self.lifecycle.flush()
                for job_id in self.active.take_overdue():
                    job = await asyncio.to_thread(self.store.get, job_id)
                    message = deadline_message(job)
                    await self._stop(job, Status(State.CANCELLING, DEADLINE, message), message)
                if turn % LOOK_EVERY == LOOK_EVERY - 1:
                    await self.watchdog.look()
                if turn % REMOVE_EVERY == 0:
                    await asyncio.to_thread(self.removal.remove_expired, time.time())
                    await asyncio.to_thread(self.store.audit.prune, self.config.audit_entries)
            except Exception:  # the disk or the database may be back in a second
                logger.exception("could not keep up")
            turn += 1
            await asyncio.sleep(UPKEEP_S)

    async def delete(self, job_id: str) -> None:
        """Remove an ended job and its files, and their copies. What was forked from it stays.

        Raises:
            StateConflict: It has not ended, or it is a sweep's trial.
        """
        await self.lifecycle.caught_up(job_id)
        job = await asyncio.to_thread(self.store.get, job_id)
        if job_id in self.active or not await asyncio.to_thread(self.store.removable, job_id):
            said = "belongs to its sweep" if job.state.is_terminal else f"is {job.state}; cancel it first"
            raise StateConflict(f"job {job_id} {said}; only a job of its own that has ended can be deleted")
        await asyncio.to_thread(self.removal.remove, [job])


def _digest(key: str | None, *parts: str) -> str:
    """Equal for two submissions under one key that ask for the same."""
    return "" if key is None else hashlib.sha256("\n".join(parts).encode()).hexdigest()
