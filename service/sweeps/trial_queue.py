"""The trials of sweeps in the queue of jobs: each waits for its turn as a job does, within what its user may have."""

import asyncio
import time

from service.jobs.lifecycle import DEADLINE, deadline_message
from service.jobs.manager import JobManager
from service.jobs.queueing.claims import Claim
from service.sweeps.trial_store import Ending, TrialProgress, TrialState, TrialStore
from service.sweeps.turns import Turns
from trainers import State

AHEAD = 16
"""Trials of one sweep that wait in the queue; each that gets its turn is followed by another."""


class TrialQueue:
    """Keeps the queue in line with the tables of trials, which know best: they outlive the service."""

    def __init__(self, jobs: JobManager) -> None:
        self.jobs = jobs
        self.queue = jobs.queue
        self.deadlines: dict[str, float] = {}
        """Trial -> when it is stopped, in seconds since 1970."""

    async def limit(self, trial: str, deadline_s: float | None) -> None:
        """Stop a trial so long after it was submitted, as a job."""
        if deadline_s is not None and trial not in self.deadlines:
            job = await asyncio.to_thread(self.jobs.store.get, trial)
            self.deadlines[trial] = job.created + deadline_s

    async def look(self, store: TrialStore) -> None:
        """Claim what the trials of a sweep hold, let go of what they do not, and have the next ones wait."""
        trials, given, state, user = await asyncio.to_thread(
            lambda: (store.progress(), Turns(store).given, store.state, store.user)
        )
        await self._stop_overdue(store, trials)
        holding, waiting = [], []
        for one in trials:
            if one.state is TrialState.RUNNING or (one.state is TrialState.QUEUED and one.id in given):
                holding.append(one.id)
            elif one.state is TrialState.QUEUED and state in (State.QUEUED, State.RUNNING):
                waiting.append(one.id)
        rest = {one.id for one in trials}.difference(holding, waiting)
        for trial in rest.intersection((*self.queue.held, *self.queue.waiting)):
            self.queue.release(trial)
        for trial in [one for one in waiting if one in self.queue.held and one not in self.jobs.admission.launches]:
            self.queue.release(trial)  # its sweep was paused, and goes on
        for trial in [one for one in holding if one not in self.queue.held]:
            self.queue.held[trial] = await self._claim(store, trial, user)
        await self._offer(store, waiting, len(holding), user)

    async def _offer(self, store: TrialStore, waiting: list[str], num_holding: int, user: str) -> None:
        """Have the next trials wait in the queue, no more than may run at a time."""
        limit = (await asyncio.to_thread(lambda: store.spec)).limits.concurrent
        room = min(AHEAD, AHEAD if limit is None else limit - num_holding)
        for place, trial in enumerate(one for one in waiting if one not in self.queue.held):
            if place >= room:
                self.queue.remove(trial)  # the limit was lowered
            elif trial not in self.queue.waiting:
                self.queue.checked.add(trial)  # a trial is checked where it runs
                self.queue.add(await self._claim(store, trial, user))

    async def _claim(self, store: TrialStore, trial: str, user: str) -> Claim:
        """What a trial takes. It keeps its size, so it gives nothing up for others."""
        row = await asyncio.to_thread(store.trial, trial)
        assert row is not None
        spec = row.job_spec
        needs, ends_s = self.jobs.runs.needs(spec), self.deadlines.get(trial)
        return Claim(trial, user, spec.priority, needs, project=spec.project, ends_s=ends_s)

    async def _stop_overdue(self, store: TrialStore, trials: list[TrialProgress]) -> None:
        now = time.time()
        for one in trials:
            if not one.state.has_ended and self.deadlines.get(one.id, now) < now:
                del self.deadlines[one.id]
                job = await asyncio.to_thread(self.jobs.store.get, one.id)
                ending = Ending(state=TrialState.CANCELLED, reason=DEADLINE, message=deadline_message(job))
                await asyncio.to_thread(store.ask, one.id, ending)
