"""The sweeps of one service: takes them in, keeps them going, follows their logs, and finds them after a restart.

A sweep is a folder; the list of sweeps is the folder above. Each trial is a job of the job manager as well.
"""

import asyncio
import hashlib
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from service.errors import KeyReused, StateConflict, SweepNotFound
from service.follow import LiveLog, read_batches
from service.jobs import JobManager
from service.scaling.evidence import Evidence
from service.store import DIGITS
from service.sweeps import control
from service.sweeps.ledger import Ledger
from service.sweeps.local import new_sweep_id
from service.sweeps.spec import SweepSpec
from service.sweeps.view import SweepSummary, SweepView, evidence, summary, view
from trainers import Event, JournalReader, State

T = TypeVar("T")
KEEP_EVERY_S = 1.0
SWEEP_ID = re.compile(r"^sweep-[0-9a-z]{1,32}\Z")  # it is a folder's name

logger = logging.getLogger(__name__)


class TrialHandle:
    """A trial as the job manager sees it."""

    def __init__(self, ledger: Ledger, trial: str) -> None:
        self.ledger = ledger
        self.trial = trial

    def cancel(self) -> None:
        """End it early; the others of its sweep go on."""
        control.stop_trial(self.ledger, self.trial)

    def pause(self) -> None:
        """Not by itself."""
        raise StateConflict(f"job {self.trial} is a trial: pause its sweep")

    def scale(self, count: int) -> None:
        """Not by itself either."""
        raise StateConflict(f"job {self.trial} is a trial of a sweep, which keeps its size; scale a job of its own")

    def is_alive(self) -> bool:
        """Whoever keeps the sweep looks after that."""
        return True


class SweepManager:
    """All sweeps of one service. Its methods run on one event loop; what blocks runs in threads."""

    def __init__(self, jobs: JobManager, folder: Path, base: Path, poll_s: float = 0.1, trainable: Any = None) -> None:
        self.jobs = jobs
        self.folder = folder
        self.base = base
        self.poll_s = poll_s
        self.trainable = trainable
        """What a trial is to Ray Tune; none: a run."""
        self.live: dict[str, LiveLog] = {}
        self.followers: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Find again what an earlier process left. The job manager has started."""
        for ledger in await asyncio.to_thread(self._ledgers):
            if await asyncio.to_thread(_has_ended, ledger):
                for row in await asyncio.to_thread(ledger.trials):
                    self.jobs.lives.adopt(row.id, TrialHandle(ledger, row.id))
            else:
                await self._follow(ledger)

    async def stop(self) -> None:
        """Let go of everything; sweeps go on."""
        for task in self.followers.values():
            task.cancel()
        await asyncio.gather(*self.followers.values(), return_exceptions=True)

    async def check(self, spec: SweepSpec) -> tuple[SweepSpec, int]:
        """A dry run: the spec as it would run, and how many trials it has. Raises SpecInvalid, NeverFits."""
        spec = spec.resolved(self.base)
        return spec, await asyncio.to_thread(lambda: control.check_fits(spec, self.jobs.runs.total_resources()))

    async def submit(self, spec: SweepSpec, key: str | None = None, user: str = "local") -> tuple[SweepView, bool]:
        """Take a sweep in. With a key of the user's that came before, the sweep that it stands for. Returns whether it
        is new."""
        spec, _ = await self.check(spec)
        digest = hashlib.sha256(spec.model_dump_json().encode()).hexdigest()
        sweep_id = new_sweep_id() if key is None else _id_of(user, key)
        ledger = Ledger(self.folder / sweep_id)
        if ledger.exists:
            if await asyncio.to_thread(ledger.get, "body_hash") != digest:
                raise KeyReused(f"the key {key!r} stands for {sweep_id} already, which has another spec; use a new key")
            return await self.show(sweep_id), False
        await asyncio.to_thread(control.begin, ledger.folder, sweep_id, spec, digest, user)
        await self._follow(ledger)
        return await self.show(sweep_id), True

    async def page(self) -> list[SweepSummary]:
        """All sweeps, newest first."""
        found = await asyncio.to_thread(lambda: [summary(ledger) for ledger in self._ledgers()])
        return sorted(found, key=lambda one: one.created, reverse=True)

    async def show(self, sweep_id: str) -> SweepView:
        """One sweep with its trials. Raises SweepNotFound."""
        return await asyncio.to_thread(view, self._ledger(sweep_id))

    async def evidence(self, sweep_id: str) -> Evidence:
        """What its trials showed so far. Raises SweepNotFound."""
        return await asyncio.to_thread(evidence, self._ledger(sweep_id))

    async def cancel(self, sweep_id: str) -> SweepView:
        """Stop its trials cleanly and run no more."""
        return await self._do(sweep_id, control.cancel)

    async def pause(self, sweep_id: str) -> SweepView:
        """Take its processes away; its trials go on later from their last checkpoints."""
        return await self._do(sweep_id, control.pause)

    async def resume(self, sweep_id: str) -> SweepView:
        """Go on."""
        return await self._do(sweep_id, control.resume)

    async def extend(self, sweep_id: str, axes: Mapping[str, Any], limits: Mapping[str, Any]) -> SweepView:
        """More values on its axes, or more axes, or other limits. Raises SpecInvalid."""
        return await self._do(sweep_id, lambda ledger: control.extend(ledger, axes, limits))

    async def events(self, sweep_id: str, after: int = 0) -> AsyncIterator[list[Event]]:
        """The log above the number `after`, in batches, as it grows; ends when the sweep has."""
        ledger = self._ledger(sweep_id)
        live = self.live.get(sweep_id)
        return read_batches(ledger.folder, after) if live is None else live.follow(after)

    async def events_so_far(self, sweep_id: str, after: int, limit: int) -> list[Event]:
        """What the log holds now above `after`, at most `limit` events."""
        reader = JournalReader(self._ledger(sweep_id).folder, after)
        return await asyncio.to_thread(lambda: [*islice(reader.read(), limit)])

    # -- within ---------------------------------------------------------------------------------------------------

    def _ledgers(self) -> list[Ledger]:
        found = self.folder.iterdir() if self.folder.is_dir() else ()
        return [ledger for folder in found if (ledger := Ledger(folder)).exists]

    def _ledger(self, sweep_id: str) -> Ledger:
        ledger = Ledger(self.folder / sweep_id)
        if not SWEEP_ID.match(sweep_id) or not ledger.exists:
            raise SweepNotFound(f"there is no sweep {sweep_id!r}")
        return ledger

    async def _do(self, sweep_id: str, what: Callable[[Ledger], T]) -> SweepView:
        ledger = self._ledger(sweep_id)
        await asyncio.to_thread(what, ledger)
        if sweep_id not in self.live and not await asyncio.to_thread(_has_ended, ledger):
            await self._follow(ledger)
        return await self.show(sweep_id)

    async def _follow(self, ledger: Ledger) -> None:
        """From the last end on, if there was one."""
        sweep_id = await asyncio.to_thread(ledger.get, "id")
        if sweep_id in self.live:  # its follower went on with it when it was extended, and so did the extension
            return
        log = self.live[sweep_id] = LiveLog(ledger.folder)
        ends = [event.seq for event in await asyncio.to_thread(lambda: [*log.reader.read()]) if event.is_terminal]
        log.reader = JournalReader(ledger.folder, max(ends, default=0))
        await self._adopt(ledger)
        self.followers[sweep_id] = asyncio.create_task(self._keep(sweep_id, ledger, log), name=f"keep {sweep_id}")

    async def _keep(self, sweep_id: str, ledger: Ledger, log: LiveLog) -> None:
        """Until it has ended: a driver, and every trial's state where it belongs."""
        kept_s, events = 0.0, list[Event]()
        while not log.ended:
            try:
                events = await log.read()
                moved = {event.data["trial"]: event.data for event in events if event.type == "trial"}
                if any(trial not in self.jobs.lives.trials for trial in moved):
                    await self._adopt(ledger)
                for trial, data in moved.items():
                    await self._note(trial, data)
                if time.monotonic() - kept_s > KEEP_EVERY_S:
                    kept_s = time.monotonic()
                    await asyncio.to_thread(control.keep, ledger, self.trainable)
            except Exception:  # the cluster or the disk may be back in a second
                logger.exception("could not look after %s", sweep_id)
                await asyncio.sleep(KEEP_EVERY_S)
            if not events:
                await asyncio.sleep(self.poll_s)
        for row in await asyncio.to_thread(ledger.trials):
            await self._note(row.id, row.model_dump(mode="json"))
        self.live.pop(sweep_id, None)
        self.followers.pop(sweep_id, None)
        if not await asyncio.to_thread(_has_ended, ledger):  # extended while its driver said goodbye
            await self._follow(ledger)

    async def _adopt(self, ledger: Ledger) -> None:
        """Make jobs of its trials."""
        rows = await asyncio.to_thread(ledger.trials)
        sweep_id, user = await asyncio.to_thread(lambda: (ledger.get("id"), ledger.user))
        trials = {row.id: (row.job_spec, ledger.run_dir(row.id)) for row in rows}
        await asyncio.to_thread(self.jobs.store.adopt, sweep_id, trials, user)
        for row in rows:
            self.jobs.lives.adopt(row.id, TrialHandle(ledger, row.id))
            await self._note(row.id, row.model_dump(mode="json"))

    async def _note(self, trial: str, data: Mapping[str, Any]) -> None:
        state = State.CANCELLED if data["state"] == "STOPPED" else State(data["state"])
        await self.jobs.lives.trial_moved(trial, state, data["reason"], data["message"])


def _id_of(user: str, key: str) -> str:
    """The same sweep for the same key of the same user, across restarts."""
    digest = hashlib.sha256(f"{user}\n{key}".encode()).digest()
    return "sweep-" + "".join(DIGITS[byte & 31] for byte in digest[:12])


def _has_ended(ledger: Ledger) -> bool:
    return ledger.state.is_terminal
