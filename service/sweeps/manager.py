"""The sweeps of one service: submits them, keeps them going, follows their logs, and takes them up after a restart.

A sweep is a folder, and the list of sweeps is the folder above. Each trial is also a job of the job manager.
"""

import asyncio
import hashlib
import logging
import re
import shutil
import time
from collections.abc import AsyncIterator, Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from service.database.job_changes import JobChanges
from service.errors import KeyReused, SpecInvalid, SpecUnreadable, StateConflict, SweepNotFound
from service.ids import DIGITS
from service.jobs.live_log import LiveLog, read_batches
from service.jobs.manager import JobManager
from service.status import Status
from service.sweeps import control
from service.sweeps.ledgers.keeper import LedgerKeeper
from service.sweeps.listing import SweepPage, SweepQuery, page
from service.sweeps.local import new_sweep_id
from service.sweeps.removal import expires, remove
from service.sweeps.reporting.any_report import AnyReport
from service.sweeps.reporting.drawings import Drawings
from service.sweeps.reporting.reports import Reports
from service.sweeps.spec import SweepSpec
from service.sweeps.trial_queue import TrialQueue
from service.sweeps.trial_store import TrialStore
from service.sweeps.turns import Turns
from service.sweeps.views import SweepView, view
from trainers import Event, EventLogReader, Resources, State

T = TypeVar("T")
KEEP_EVERY_S = 1.0
REMOVE_EVERY_S = 60.0
ENDS_WITHIN_S = 10.0
"""How long a sweep's end may take to be recorded before it is deleted."""
SWEEP_ID = re.compile(r"^sweep-[0-9a-z]{1,32}\Z")  # it names a folder

logger = logging.getLogger(__name__)


class TrialHandle:
    """A trial as the run of a job."""

    def __init__(self, store: TrialStore, trial: str) -> None:
        self.store = store
        self.trial = trial

    def give_turn(self) -> None:
        """It may run."""
        Turns(self.store).give(self.trial)

    def cancel(self) -> None:
        """Cancel the trial; the others of its sweep go on."""
        control.stop_trial(self.store, self.trial)

    def pause(self) -> None:
        """Raise StateConflict: a trial is not paused on its own."""
        raise StateConflict(f"job {self.trial} is a trial: pause its sweep")

    def scale(self, count: int) -> None:
        """Raise StateConflict: a trial is not scaled."""
        raise StateConflict(f"job {self.trial} is a trial of a sweep, which keeps its size; scale a job of its own")

    def trace(self, steps: int, worker: int | None) -> int:
        """Raise StateConflict: a trial is not traced."""
        raise StateConflict(f"job {self.trial} is a trial of a sweep; trace a job with its spec")

    def note(self, request: dict[str, Any]) -> None:
        """Nothing: what is asked of a trial is asked of its sweep."""

    def is_alive(self) -> bool:
        """Always: the driver of the sweep looks after its trials."""
        return True


class SweepManager:
    """All sweeps of one service. Its methods run on one event loop; what blocks runs in threads."""

    def __init__(self, jobs: JobManager, folder: Path, base: Path, poll_s: float = 0.1, trainable: Any = None) -> None:
        self.jobs = jobs
        self.folder = folder
        self.base = base
        self.poll_s = poll_s
        self.trainable = trainable
        """Replaces the class of the trials in Ray Tune; none: `TrialRun`."""
        self.queue = TrialQueue(jobs)
        self.ledgers = LedgerKeeper(jobs.store, jobs.mirror)
        self.reports = Reports()
        self.drawings = Drawings(folder)
        self.logs: dict[str, LiveLog] = {}
        self.followers: dict[str, asyncio.Task[None]] = {}
        self.upkeep: asyncio.Task[None] | None = None
        self.noted: set[str] = set()
        """Trials whose ends their jobs know."""

    async def start(self) -> None:
        """Take up the sweeps that an earlier process left. The job manager must have started."""
        await self.drawings.start()
        await asyncio.to_thread(self.ledgers.restore, self.folder)
        for store in await asyncio.to_thread(self._stores):
            await asyncio.to_thread(self.ledgers.save, store)
            if await asyncio.to_thread(_has_ended, store):
                for row in await asyncio.to_thread(store.trials):
                    self.jobs.trials.register(row.id, TrialHandle(store, row.id))
            else:
                await self._take_up(store)

        self.upkeep = asyncio.create_task(self._keep_up(), name="upkeep of sweeps")

    async def stop(self) -> None:
        """Let go of everything; sweeps go on."""
        for task in self.followers.values():
            task.cancel()
        if self.upkeep is not None:
            self.upkeep.cancel()
        await asyncio.gather(*self.followers.values(), return_exceptions=True)
        self.reports.close()
        await self.drawings.stop()

    async def check(self, spec: SweepSpec, user: str = "local") -> tuple[SweepSpec, int]:
        """A dry run: the spec as it would run, and how many trials it has. Raises SpecInvalid, NeverFits."""
        spec = spec.resolved(self.base)
        entrance, project = self.jobs.entrance, spec.job.project
        entrance.check_project(project, "/job/project")

        def refuses(needed: Resources) -> str | None:
            return entrance.refuses(needed, user, project)

        total = await asyncio.to_thread(self.jobs.runs.total_resources)
        return spec, await asyncio.to_thread(control.check_fits, spec, total, self.jobs.config.growth, refuses)

    async def submit(self, spec: SweepSpec, key: str | None = None, user: str = "local") -> tuple[SweepView, bool]:
        """Accept a sweep. A key that the user has used before stands for that sweep. Returns whether it is new."""
        spec, _ = await self.check(spec, user)
        digest = hashlib.sha256(spec.model_dump_json().encode()).hexdigest()
        sweep_id = new_sweep_id() if key is None else _id_of(user, key)
        store = TrialStore(self.folder / sweep_id)
        if store.exists:
            if await asyncio.to_thread(store.get, "body_hash") != digest:
                raise KeyReused(f"the key {key!r} stands for {sweep_id} already, which has another spec; use a new key")
            return await self.show(sweep_id), False
        await asyncio.to_thread(control.begin, store.folder, sweep_id, spec, digest, user)
        await asyncio.to_thread(self.ledgers.save, store)
        try:  # once more: the project may have been deleted before the sweep was saved, and not after that
            self.jobs.entrance.check_project(spec.job.project, "/job/project")
        except SpecInvalid:
            await asyncio.to_thread(self.ledgers.forget, store)
            await asyncio.to_thread(shutil.rmtree, store.folder)
            raise
        await self._follow(store)
        return await self.show(sweep_id), True

    async def page(self, query: SweepQuery) -> SweepPage:
        """A page of sweeps, newest first."""
        return await asyncio.to_thread(page, self.ledgers.saved, self.folder, query)

    async def delete(self, sweep_id: str) -> None:
        """Remove a sweep that has ended, with its trials and all their files. Raises SweepNotFound, StateConflict."""
        store = self._store(sweep_id)
        if (follower := self.followers.get(sweep_id)) is not None and store.state.is_terminal:
            await asyncio.wait({follower}, timeout=ENDS_WITHIN_S)  # it has still to record the end
        await remove(self.jobs, self.ledgers, store)
        await self.drawings.forget(sweep_id)

    async def remove_expired(self, now: float) -> None:
        """Remove the sweeps that have ended and whose time is over."""
        keep_s = self.jobs.config.quotas.keep_s
        for store in await asyncio.to_thread(self._stores):
            until = await asyncio.to_thread(expires, store, keep_s)
            if until is not None and until < now:
                await self.delete(store.folder.name)

    async def show(self, sweep_id: str) -> SweepView:
        """One sweep with its trials. Raises SweepNotFound."""
        return await asyncio.to_thread(view, self._store(sweep_id))

    async def report(self, sweep_id: str) -> AnyReport:
        """What its trials have shown so far. Raises SweepNotFound."""
        return await self.reports.of(self._store(sweep_id))

    def folder_of(self, sweep_id: str) -> Path:
        """Where it lies. Raises SweepNotFound."""
        return self._store(sweep_id).folder

    async def figure_names(self, sweep_id: str, user: str) -> tuple[str, ...]:
        """Of the report's figures. Raises SweepNotFound, DrawingFailed, TooManyInFlight."""
        return await self.drawings.names(self._store(sweep_id), user)

    async def figure(self, sweep_id: str, name: str, user: str) -> bytes:
        """One of them. Raises SweepNotFound, FigureNotFound, DrawingFailed, TooManyInFlight."""
        return await self.drawings.file(self._store(sweep_id), name, user)

    async def cancel(self, sweep_id: str) -> SweepView:
        """Stop its trials cleanly, and run no more."""
        return await self._do(sweep_id, control.cancel)

    async def pause(self, sweep_id: str) -> SweepView:
        """Stop its processes; its trials go on later from their last checkpoints."""
        return await self._do(sweep_id, control.pause)

    async def resume(self, sweep_id: str) -> SweepView:
        """Resume a paused or failed sweep. Raises SpecInvalid where its project was deleted."""
        await self._check_project(sweep_id)
        return await self._do(sweep_id, control.resume)

    async def extend(self, sweep_id: str, axes: Mapping[str, Any], limits: Mapping[str, Any]) -> SweepView:
        """Add values to its axes, add axes, or change its limits. Raises SpecInvalid."""
        await self._check_project(sweep_id)
        return await self._do(sweep_id, lambda store: control.extend(store, axes, limits))

    async def edit(self, sweep_id: str, changes: JobChanges) -> SweepView:
        """Change its name, labels, notes or priority, or archive it. Raises StateConflict, SpecInvalid."""
        store = self._store(sweep_id)
        await asyncio.to_thread(control.edit, store, changes)
        if "priority" in changes.given:
            only = JobChanges(priority=changes.priority)
            for one in await asyncio.to_thread(store.progress):
                if not one.state.has_ended:
                    await asyncio.to_thread(self.jobs.store.edit, one.id, only)
                    self.jobs.queue.reprioritise(one.id, changes.priority)
        if "archived" in changes.given:
            await asyncio.to_thread(self.ledgers.saved.archive_trials, sweep_id, changes.archived)
        await asyncio.to_thread(self.ledgers.save, store)
        return await self.show(sweep_id)

    async def events(self, sweep_id: str, after: int = 0) -> AsyncIterator[list[Event]]:
        """The log above the number `after`, in batches, as it grows; ends when the sweep has."""
        store = self._store(sweep_id)
        log = self.logs.get(sweep_id)
        return read_batches(store.folder, after) if log is None else log.follow(after)

    async def events_so_far(self, sweep_id: str, after: int, limit: int) -> list[Event]:
        """The events that the log holds now above `after`, at most `limit` of them."""
        reader = EventLogReader(self._store(sweep_id).folder, after)
        return await asyncio.to_thread(lambda: [*islice(reader.read(), limit)])

    async def _keep_up(self) -> None:
        while True:
            try:
                await self.remove_expired(time.time())
            except Exception:  # the disk or the database may be back in a minute
                logger.exception("could not remove expired sweeps")
            await asyncio.sleep(REMOVE_EVERY_S)

    # -- within ---------------------------------------------------------------------------------------------------

    def _stores(self) -> list[TrialStore]:
        found = self.folder.iterdir() if self.folder.is_dir() else ()
        return [store for folder in found if (store := TrialStore(folder)).exists]

    def _store(self, sweep_id: str) -> TrialStore:
        store = TrialStore(self.folder / sweep_id)
        if not SWEEP_ID.match(sweep_id) or not store.exists:
            raise SweepNotFound(f"there is no sweep {sweep_id!r}")
        return store

    async def _check_project(self, sweep_id: str) -> None:
        spec = await asyncio.to_thread(self._store(sweep_id).get, "spec")
        self.jobs.entrance.check_project(spec["job"].get("project", "default"), "/job/project")

    async def _do(self, sweep_id: str, what: Callable[[TrialStore], T]) -> SweepView:
        store = self._store(sweep_id)
        await asyncio.to_thread(what, store)
        await asyncio.to_thread(self.ledgers.save, store)
        if sweep_id not in self.logs and not await asyncio.to_thread(_has_ended, store):
            await self._follow(store)
        return await self.show(sweep_id)

    async def _take_up(self, store: TrialStore) -> None:
        """Follow a sweep that an earlier process left. If another version of Millrace has to, the log says so once."""
        try:
            await asyncio.to_thread(lambda: store.spec)
        except SpecUnreadable as error:
            logger.error("%s", error)
        else:
            await self._follow(store)

    async def _follow(self, store: TrialStore) -> None:
        """Follow the log of a sweep from its last end on, if it had one."""
        sweep_id = await asyncio.to_thread(store.get, "id")
        if sweep_id in self.logs:  # it is being followed already, and was extended meanwhile
            return
        log = self.logs[sweep_id] = LiveLog(store.folder)
        await asyncio.to_thread(Turns(store).require, True)
        ends = [event.seq for event in await asyncio.to_thread(lambda: [*log.reader.read()]) if event.is_terminal]
        log.reader = EventLogReader(store.folder, max(ends, default=0))
        await self._add_trials(store)
        await self.queue.look(store)  # what its trials hold counts before any job is started
        self.followers[sweep_id] = asyncio.create_task(self._keep(sweep_id, store, log), name=f"keep {sweep_id}")

    async def _keep(self, sweep_id: str, store: TrialStore, log: LiveLog) -> None:
        """Until the sweep has ended, make sure that it has a driver, and record the states of its trials."""
        kept_s, events, keeping = 0.0, list[Event](), None
        while not log.ended:
            try:
                events = await log.read()
                moved = {event.data["trial"]: event.data for event in events if event.type == "trial"}
                if any(trial not in self.jobs.trials for trial in moved):
                    await self._add_trials(store)
                for trial, data in moved.items():
                    await self._note(trial, data)
                if moved or time.monotonic() - kept_s > KEEP_EVERY_S:
                    kept_s = time.monotonic()
                    await self.queue.look(store)
                    await self._note_ends(store)
                    await asyncio.to_thread(self.ledgers.save, store)
                    if keeping is None or keeping.done():  # it may wait for an answer of Ray; the queue must not
                        if keeping is not None:
                            keeping.result()
                        keep = asyncio.to_thread(control.keep, store, self.jobs.config.growth, self.trainable)
                        keeping = asyncio.create_task(keep, name=f"driver of {sweep_id}")
            except Exception:  # the cluster or the disk may be back in a second
                keeping = None
                logger.exception("could not keep %s going", sweep_id)
                await asyncio.sleep(KEEP_EVERY_S)
            if not events:
                await asyncio.sleep(self.poll_s)
        await self.queue.look(store)
        await self._note_ends(store)
        await asyncio.to_thread(self.ledgers.save, store)
        self.logs.pop(sweep_id, None)
        self.followers.pop(sweep_id, None)
        if not await asyncio.to_thread(_has_ended, store):  # it was extended while its driver ended
            await self._follow(store)

    async def _add_trials(self, store: TrialStore) -> None:
        """Make its trials jobs."""
        rows = await asyncio.to_thread(store.trials)
        sweep_id, user = await asyncio.to_thread(lambda: (store.get("id"), store.user))
        trials = {row.id: (row.job_spec, store.run_dir(row.id)) for row in rows}
        await self.jobs.trials.add(sweep_id, trials, user)
        for row in rows:
            self.jobs.trials.register(row.id, TrialHandle(store, row.id))
            await self.queue.limit(row.id, row.job.get("deadline_s"))
            await self._note(row.id, row.model_dump(mode="json"))

    async def _note_ends(self, store: TrialStore) -> None:
        """Record the ends of trials that no driver reports, since none runs while they wait."""
        for one in await asyncio.to_thread(store.progress):
            if one.state.has_ended and one.id not in self.noted:
                row = await asyncio.to_thread(store.trial, one.id)
                assert row is not None
                await self._note(row.id, row.model_dump(mode="json"))

    async def _note(self, trial: str, data: Mapping[str, Any]) -> None:
        state = State.CANCELLED if data["state"] == "STOPPED" else State(data["state"])
        if state.is_terminal:
            self.noted.add(trial)
        await self.jobs.trials.record_state(trial, Status(state, data["reason"], data["message"]))


def _id_of(user: str, key: str) -> str:
    """The id of the sweep that a user submits with a key; the same after a restart."""
    digest = hashlib.sha256(f"{user}\n{key}".encode()).digest()
    return "sweep-" + "".join(DIGITS[byte & 31] for byte in digest[:12])


def _has_ended(store: TrialStore) -> bool:
    return store.state.is_terminal
