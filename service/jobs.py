"""The manager: what may be asked about jobs. It takes them in, shows them, stops, pauses, resumes and forks them."""

import asyncio
import contextlib
import hashlib
import logging
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from service.checkpoints import CheckpointView, checkpoints, give, open_file
from service.errors import NeverFits, StateConflict
from service.follow import read_batches
from service.fork import choose, forked_spec
from service.lives import AT_REST, AT_WORK, DEADLINE, Live, Lives, begin_log, deadline_told, ended_as, overdue
from service.progress import Progress, log_line
from service.runs import Runs
from service.series import Line, table_of
from service.spec import JobSpec
from service.store import Job, Query, Store, Submission, new_job_id
from service.views import JobView, Page, summary, view
from service.waiting import Claim, Rules
from trainers import Event, Resources, State

CANCEL = "CancelRequested"
PAUSE = "PauseRequested"
RESUME = "ResumeRequested"
NOT_STARTED = "cancelled before it started"
UPKEEP_S = 1.0
ASK_AGAIN_S = 1.0
REMOVE_EVERY = 60  # upkeeps

logger = logging.getLogger(__name__)


class JobManager:
    """All jobs of one service. Its methods run on one event loop; what blocks runs in threads."""

    def __init__(
        self, store: Store, runs: Runs, runs_dir: Path, base: Path, poll_s: float = 0.1, rules: Rules | None = None
    ) -> None:
        self.store = store
        self.runs = runs
        self.runs_dir = runs_dir
        self.base = base
        self.rules = rules or Rules()
        self.lives = Lives(store, runs, self.rules, poll_s)
        self.tasks: list[asyncio.Task[None]] = []
        self.total: tuple[float, Resources] | None = None
        """What the cluster had, and when."""

    async def start(self) -> None:
        """Find again what an earlier process left, and begin to admit."""
        await self.lives.start()
        if (mirror := self.lives.homes.mirror) is not None:
            self.lives.metrics.watch(mirror)
            mirror.live = self.lives.run_dirs
            for job_id, run_dir in (await asyncio.to_thread(self.store.run_dirs)).items():
                mirror.look(job_id, run_dir)
            mirror.start()
        self.tasks = [
            asyncio.create_task(self.lives.queue.run(), name="queue"),
            asyncio.create_task(self._keep_up(), name="upkeep"),
        ]

    async def stop(self) -> None:
        """Let go of everything; runs go on."""
        await self.lives.queue.close()
        for task in self.tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self.lives.stop()
        if self.lives.homes.mirror is not None:
            await asyncio.to_thread(self.lives.homes.mirror.close)

    async def num_queued(self) -> int:
        """Jobs that wait."""
        return await asyncio.to_thread(self.store.num_queued)

    # -- taking in ------------------------------------------------------------------------------------------------

    async def check(self, spec: JobSpec, user: str = "local") -> JobSpec:
        """A dry run: the spec as it would be run.

        Raises:
            NeverFits: The cluster could never start it, or its user may never hold so much.
        """
        spec = spec.resolved(self.base)
        needs, total = self.runs.needs(spec), await self._total()
        if not needs.fits(total):
            raise NeverFits(
                f"the job needs {needs.cpus:g} CPUs and {needs.gpus:g} GPUs at once, the cluster has {total.cpus:g} "
                f"and {total.gpus:g}; ask for fewer workers or for less a worker"
            )
        if (limit := self.rules.refuses(Claim("", user, 0, needs), ())) is not None:
            raise NeverFits(
                f"the job needs {needs.cpus:g} CPUs and {needs.gpus:g} GPUs at once, and {limit}; ask for fewer "
                "workers or for less a worker"
            )
        return spec

    async def submit(self, spec: JobSpec, key: str | None = None, user: str = "local") -> tuple[JobView, bool]:
        """Take a job in. With a key that came before, the job that it stands for. Returns whether it is new.

        Raises:
            NeverFits: As `check` does.
            KeyReused: The key stands for another job.
            TooManyWaiting: As many of the user's jobs wait as may.
        """
        spec = await self.check(spec, user)
        return await self._take_in(Submission(spec, key, _digest(key, spec), user, self.rules.waiting_jobs))

    async def fork(
        self, job_id: str, changes: dict[str, Any], step: str | None = None, key: str | None = None, user: str = "local"
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
        new = Submission(spec, key, _digest(key, spec, parent), user, self.rules.waiting_jobs, (new_id, parent))
        # Its folder first: a job whose beginning is missing would begin at the beginning.
        await asyncio.to_thread(give, job.run_dir, begin.step, self.runs_dir / new_id)
        is_new = False
        try:
            taken, is_new = await self._take_in(new)
        finally:
            if not is_new:
                await asyncio.to_thread(shutil.rmtree, self.runs_dir / new_id, ignore_errors=True)
        return taken, is_new

    async def forked(
        self, job_id: str, changes: dict[str, Any], step: str | None = None, user: str = "local"
    ) -> tuple[Job, JobSpec, CheckpointView]:
        """A fork's dry run: from which job, with which spec, from where. Raises what `fork` does."""
        job = await asyncio.to_thread(self.lives.homes.find, job_id)
        begin = await asyncio.to_thread(choose, job, step)
        return job, await self.check(forked_spec(job, changes, begin), user), begin

    async def _take_in(self, new: Submission) -> tuple[JobView, bool]:
        added = await asyncio.wrap_future(self.store.adding(new, self.runs_dir, begin_log))
        job = added.job
        if not added.is_new:
            return await self.show(job.id), False
        self.lives.begin(job, added.first, self.lives.queue.claim(job, new.spec))
        return view(*_known(job, self.lives.live.get(job.id)), self.lives.queue.outlook(job.id), new.spec), True

    async def _bring_home(self, job_id: str) -> None:
        """Bring the job's run directory back, where it is gone."""
        if self.lives.homes.mirror is not None:
            await asyncio.to_thread(self.lives.homes.find, job_id)

    async def _total(self) -> Resources:
        """What the cluster has; in a crowd of posts, it is not asked for each."""
        if self.total is None or time.monotonic() - self.total[0] > ASK_AGAIN_S:
            self.total = time.monotonic(), await asyncio.to_thread(self.runs.total_resources)
        return self.total[1]

    # -- showing --------------------------------------------------------------------------------------------------

    async def page(self, query: Query) -> Page:
        """A page of jobs, newest first."""
        live = dict(self.lives.live)
        jobs = await asyncio.to_thread(self.store.find, query.model_copy(update={"limit": query.limit + 1}))
        more = len(jobs) > query.limit
        jobs = jobs[: query.limit]
        outlook = self.lives.queue.outlook
        summaries = [summary(*_known(job, live.get(job.id)), outlook(job.id)) for job in jobs]
        return Page(summaries, jobs[-1].id if more else None)

    async def show(self, job_id: str) -> JobView:
        """One job. Raises JobNotFound."""
        live = self.lives.live.get(job_id)  # before the store: one that ends in between has its figures in one of them
        job = await asyncio.to_thread(self.store.get, job_id)
        shown = view(*_known(job, live), self.lives.queue.outlook(job_id))
        mirror = self.lives.homes.mirror
        return shown if mirror is None else shown.model_copy(update={"storage": mirror.told(job_id)})

    async def events(self, job_id: str, after: int = 0) -> AsyncIterator[list[Event]]:
        """The log above the number `after`, in batches, as it grows; ends with the terminal event."""
        await self._bring_home(job_id)
        job, live = await self.lives.find(job_id)
        return read_batches(job.run_dir, after) if live is None else live.log.follow(after)

    async def events_so_far(self, job_id: str, after: int, limit: int) -> list[Event]:
        """What the log holds now above `after`, at most `limit` events."""
        job = await asyncio.to_thread(self.lives.homes.find, job_id)
        events: list[Event] = []
        async for batch in read_batches(job.run_dir, after):
            events += batch
            if len(events) >= limit:
                break
        return events[:limit]

    async def log_lines(self, job_id: str) -> AsyncIterator[str]:
        """The log's lines for people, as far as it goes now."""
        job = await asyncio.to_thread(self.lives.homes.find, job_id)
        return _lines(job.run_dir)

    async def line(self, job_id: str, name: str, axis: str, points: int) -> Line:
        """One figure over the run, thinned out to so many points. Raises SeriesNotFound."""
        job = await asyncio.to_thread(self.lives.homes.find, job_id)
        return await asyncio.to_thread(self.lives.series.line, job.run_dir, name, axis, points)

    async def lines(self, job_ids: Sequence[str], name: str, axis: str, points: int) -> list[Line | None]:
        """The same figure of several runs; none of one that is not there. Raises SeriesNotFound."""
        table_of(name)

        def read() -> list[Line | None]:
            found = self.store.run_dirs(job_ids)
            folders = [found.get(job_id) for job_id in job_ids]
            return [
                None if folder is None else self.lives.series.line(folder, name, axis, points) for folder in folders
            ]

        return await asyncio.to_thread(read)

    async def checkpoints(self, job_id: str) -> list[CheckpointView]:
        """The checkpoints that a job has kept, oldest first."""
        job = await asyncio.to_thread(self.lives.homes.find, job_id)
        return await asyncio.to_thread(checkpoints, job.run_dir)

    async def checkpoint_file(self, job_id: str, step: str, name: str) -> BinaryIO:
        """One file of a checkpoint, open. Raises CheckpointNotFound."""
        job = await asyncio.to_thread(self.lives.homes.find, job_id)
        return await asyncio.to_thread(open_file, job.run_dir, step, name)

    # -- stopping and going on ------------------------------------------------------------------------------------

    async def cancel(self, job_id: str) -> JobView:
        """Stop a job: a waiting or paused one at once, a running one cleanly.

        Raises:
            StateConflict: It has ended.
        """
        if (trial := self.lives.trials.get(job_id)) is not None:
            await asyncio.to_thread(trial.cancel)
            return await self.show(job_id)
        job, _ = await self.lives.find(job_id)
        if not await self._stop(job, CANCEL, NOT_STARTED, "stops with a checkpoint"):
            job = await asyncio.to_thread(self.store.get, job_id)
            if job.state.is_terminal:
                raise StateConflict(f"job {job_id} is {job.state}; only a job that has not ended can be cancelled")
        return await self.show(job_id)  # perhaps it is being cancelled already

    async def pause(self, job_id: str) -> JobView:
        """Stop a job so that it can go on later: a waiting one at once, a running one cleanly, with a checkpoint.

        Raises:
            StateConflict: It has ended, or is being cancelled.
        """
        if (trial := self.lives.trials.get(job_id)) is not None:
            await asyncio.to_thread(trial.pause)
        job, live = await self.lives.find(job_id)
        told = (PAUSE, "stops with a checkpoint, and goes on when it is resumed")
        if await self.lives.move(job_id, (State.QUEUED,), State.PAUSING, PAUSE, "paused while it waited"):
            await self.lives.tell(job, State.PAUSED, PAUSE, "paused while it waited")
        elif await self.lives.move(job_id, AT_WORK, State.PAUSING, *told):
            if live is not None and live.handle is not None:  # else it is being started, and hears of it then
                await asyncio.to_thread(live.handle.pause)
        else:
            job = await asyncio.to_thread(self.store.get, job_id)
            if job.state not in (State.PAUSING, State.PAUSED):
                raise StateConflict(f"job {job_id} is {job.state}; only one that waits, starts or runs can be paused")
        return await self.show(job_id)

    async def scale(self, job_id: str, workers: int) -> JobView:
        """Have so many workers train a running job from soon on, without a restart; or one that waits or is paused,
        once it goes on.

        Raises:
            StateConflict: It has ended or is about to, or is a sweep's trial.
            SpecRejected: It cannot have so many, or so few.
            NeverFits: The cluster has no room for so many.
        """
        await self.lives.caught_up(job_id)
        job, live = await self.lives.find(job_id)
        if job_id in self.lives.trials:
            raise StateConflict(f"job {job_id} is a trial of a sweep, which keeps its size; scale a job of its own")
        if job.state in AT_REST and await self._respecify(job, workers):
            return await self.show(job_id)
        if job.state not in (State.RUNNING, State.RECOVERING) or live is None or live.handle is None:
            raise StateConflict(f"job {job_id} is {job.state}; only one that trains, waits or is paused can be scaled")
        await asyncio.to_thread(live.handle.scale, workers)
        await asyncio.to_thread(self.store.respecify, job_id, AT_WORK, job.job_spec.with_workers(workers))
        self.lives.queue.room.wants(job_id, workers)
        return await self.show(job_id)

    async def _respecify(self, job: Job, workers: int) -> bool:
        """Change how many workers a job begins with. Returns whether its state still allowed it."""
        spec = await self.check(job.job_spec.with_workers(workers), job.user)
        if not await asyncio.to_thread(self.store.respecify, job.id, AT_REST, spec):
            return False
        if job.id in self.lives.queue.waiting:
            self.lives.queue.add(self.lives.queue.claim(job, spec))
        return True

    async def resume(self, job_id: str) -> JobView:
        """Let a paused job go on from its checkpoint, when its turn comes. Raises StateConflict if it is not paused."""
        await self._bring_home(job_id)
        job, _ = await self.lives.find(job_id)
        await self.lives.caught_up(job_id)
        told = (RESUME, "waits for its turn to go on")
        if not await self.lives.move(job_id, (State.PAUSED,), State.QUEUED, *told):
            job = await asyncio.to_thread(self.store.get, job_id)
            hint = "wait until it is PAUSED" if job.state is State.PAUSING else "only a paused job can be resumed"
            raise StateConflict(f"job {job_id} is {job.state}; {hint}")
        await self.lives.tell(job, State.QUEUED, *told)
        return await self.show(job_id)

    async def _stop(self, job: Job, reason: str, at_once: str, cleanly: str) -> bool:
        """Cancel a job, at once where nobody runs it. Returns whether its state allowed it."""
        if await self.lives.move(job.id, (State.QUEUED, State.PAUSED), State.CANCELLING, reason, at_once):
            await self.lives.tell(job, State.CANCELLED, reason, at_once)
            return True
        if not await self.lives.move(job.id, (*AT_WORK, State.PAUSING), State.CANCELLING, reason, cleanly):
            return False
        live = self.lives.live.get(job.id)
        if live is not None and live.handle is not None:  # else it is being started, and hears of it then
            await asyncio.to_thread(live.handle.cancel)
        return True

    # -- what time brings -----------------------------------------------------------------------------------------

    async def _keep_up(self) -> None:
        """Write what is owed, stop whose deadline has passed, remove whose time is over; again and again."""
        turn = 0
        while True:
            try:
                await self.lives.pay()
                for job_id in overdue(self.lives):
                    job = await asyncio.to_thread(self.store.get, job_id)
                    told = deadline_told(job.spec["deadline_s"])
                    await self._stop(job, DEADLINE, told, told)
                if turn % REMOVE_EVERY == 0:
                    await asyncio.to_thread(self.remove_expired, time.time())
            except Exception:  # the disk or the database may be back in a second
                logger.exception("could not keep up")
            turn += 1
            await asyncio.sleep(UPKEEP_S)

    def remove_expired(self, now: float) -> None:
        """Remove ended jobs whose time is over: their files, then what the store knows of them."""
        while found := self.store.expired(now, self.rules.keep_s):
            for job in found:
                if job.run_dir == self.runs_dir / job.id:  # and nothing that others wrote into the database
                    if self.lives.homes.mirror is not None:
                        self.lives.homes.mirror.forget(job.id)
                    shutil.rmtree(job.run_dir, ignore_errors=True)
                self.lives.series.forget(job.run_dir)
                self.store.remove(job.id)


def _known(job: Job, live: Live | None) -> tuple[Job, Progress]:
    """A job and how far it is. Whoever has read in its log that it has ended, or is paused, finds it so, also while the
    store does not know it yet."""
    if live is None:
        return job, Progress.model_validate(job.progress or {})
    progress = live.log.progress
    has_ended = live.log.ended and not job.state.is_terminal
    if has_ended or (progress.state is State.PAUSED and job.state is State.PAUSING):
        told = dict(zip(("state", "reason", "message"), ended_as(job, progress), strict=True))
        job = job.model_copy(update={**told, "finished": progress.ended if has_ended else None})
    return job, progress


def _digest(key: str | None, spec: JobSpec, *more: str) -> str:
    """Tells whether two submissions with a key ask for the same."""
    return "" if key is None else hashlib.sha256("\n".join((spec.model_dump_json(), *more)).encode()).hexdigest()


async def _lines(run_dir: Path) -> AsyncIterator[str]:
    async for batch in read_batches(run_dir):
        lines = [line for event in batch if (line := log_line(event)) is not None]
        if lines:
            yield "\n".join(lines) + "\n"
