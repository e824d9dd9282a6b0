"""Admission: which waiting job starts when. Strictly in order: small jobs do not pass a large one for ever."""

import asyncio
import contextlib
import logging
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from service.room import Room, Scale
from service.runs import Runs
from service.spec import JobSpec
from service.store import Job, Store
from service.waiting import AHEAD, NOTHING, Claim, Outlook, Rules, Size, far_behind, outlooks
from trainers import Resources, SpecRejected, State

LOOK_AGAIN_S = 1.0  # Ray tells nobody when resources become free
CHECK_AHEAD = 32
"""Waiting jobs that are checked before their turn."""
SETTLE_S = 0.02  # what comes in a crowd is looked at together

logger = logging.getLogger(__name__)


class Queue:
    """Starts jobs as they fit. Holds what the admitted ones took, because Ray's own count lags behind."""

    def __init__(
        self,
        store: Store,
        runs: Runs,
        launch: Callable[[str], Coroutine[Any, Any, None]],
        reject: Callable[[str, str, str], Coroutine[Any, Any, None]],
        eta_s: Callable[[str], float | None],
        rules: Rules,
        scale: Scale,
    ) -> None:
        self.store = store
        self.runs = runs
        self.launch = launch
        self.reject = reject
        self.eta_s = eta_s
        self.rules = rules
        self.waiting: dict[str, Claim] = {}
        """Waiting jobs whose log has begun: from then on it belongs to the coordinator."""
        self.line: list[Claim] = []
        """The same, in the order in which they start."""
        self.held_up: tuple[int, str] | None = None
        """Rank of the first for which there is no room: who comes behind it changes nothing."""
        self.taken: dict[str, Claim] = {}
        self.room = Room(self.taken, scale)
        self.unsettled: set[str] = set()
        """Admitted jobs that may not have taken yet, as far as Ray can tell, what they need."""
        self.giving_way: Collection[str] = ()
        self.free = NOTHING
        self.promised = NOTHING
        """What will be free once Ray's count has caught up with what jobs were told."""
        self.outlooks: dict[str, Outlook] = {}
        self.looked_s = 0.0
        self.launches: dict[str, asyncio.Task[None]] = {}
        self.preflights: dict[str, asyncio.Task[None]] = {}
        self.changed = asyncio.Event()
        self.closing = False

    def add(self, claim: Claim) -> None:
        """The job may start from now on."""
        self._leave(claim.job_id)
        self.waiting[claim.job_id] = claim
        insort(self.line, claim, key=_rank)
        if self.held_up is None or claim.rank <= self.held_up:
            self.changed.set()

    def occupy(self, job: Job, workers: int) -> None:
        """A job that runs already, found again with so many workers."""
        claim = self.claim(job)
        self.taken[job.id] = claim.with_workers(workers) if workers else claim

    def claim(self, job: Job, spec: JobSpec | None = None) -> Claim:
        """What a job takes; with another spec than its own, if one is given."""
        spec = job.job_spec if spec is None else spec
        w = spec.workers
        size = Size(w.count, w.count, w.min, Resources(w.cpus, w.gpus))
        return Claim(job.id, job.user, job.priority, self.runs.needs(spec), size)

    def settled(self, job_id: str) -> None:
        """The job holds its resources, so Ray's count has them."""
        self.unsettled.discard(job_id)
        self.changed.set()

    def release(self, job_id: str) -> None:
        """The job holds nothing, and does not wait."""
        self._leave(job_id)
        self.taken.pop(job_id, None)
        self.preflights.pop(job_id, None)
        self.settled(job_id)

    def outlook(self, job_id: str) -> Outlook | None:
        """Why the job waits and how long, if it does; not older than a look at the cluster."""
        if job_id not in self.waiting:
            return None
        if time.monotonic() - self.looked_s > LOOK_AGAIN_S:
            self.looked_s = time.monotonic()
            held = [(claim, self.eta_s(claim.job_id)) for claim in self.taken.values()]
            self.outlooks = outlooks(self.line, held, self.free, self.rules, self.giving_way)
        place = bisect_left(self.line, self.waiting[job_id].rank, key=_rank) + 1
        return self.outlooks.get(job_id) or (far_behind(place) if place > AHEAD else None)

    async def run(self) -> None:
        """Admit for ever."""
        while True:
            try:
                waiting = await self._admit()
            except Exception:  # the cluster or the database may be back in a second
                logger.exception("could not look at the queue")
                waiting = True
            with contextlib.suppress(TimeoutError):  # `wait_for` may swallow a cancellation that comes with a change
                async with asyncio.timeout(LOOK_AGAIN_S if waiting else None):
                    await self.changed.wait()
            self.changed.clear()
            await asyncio.sleep(SETTLE_S)

    async def close(self) -> None:
        """Wait for what is being started, drop what is being checked."""
        self.closing = True
        for task in self.preflights.values():
            task.cancel()
        await asyncio.gather(*self.launches.values(), *self.preflights.values(), return_exceptions=True)

    async def _admit(self) -> bool:
        """Start the first ones that fit. Returns whether any is left waiting, or has given room that it wants back."""
        self.giving_way, self.held_up = (), None
        if not self.waiting and not self.room.givers:
            return False
        self.free = await self._free()
        if not self.waiting:
            await self.room.give_back(self.free)
            return bool(self.room.givers)
        limited: set[str] = set()
        for claim in list(self.line):
            if claim.user in limited or self.rules.refuses(claim, self.taken.values()) is not None:
                limited.add(claim.user)
                continue
            if not claim.needs.fits(self.free):
                self.held_up = claim.rank
                self.giving_way = await self.room.make(claim, self.promised)
                break
            told = (State.STARTING, "Admitted", "starts its coordinator and workers")
            if await asyncio.to_thread(self.store.move, claim.job_id, (State.QUEUED,), *told):
                self._start(claim)
                self.free = await self._free()
            if self.waiting.get(claim.job_id) is claim:  # started, or moved by somebody else; not come back meanwhile
                self._leave(claim.job_id)
        self._check_next()
        return bool(self.waiting)

    def _check_next(self) -> None:
        """Have the first waiting job checked that has not been; each check holds a process on the cluster."""
        if not all(task.done() for task in self.preflights.values()):
            return
        unchecked = (claim for claim in self.line[:CHECK_AHEAD] if claim.job_id not in self.preflights)
        if (claim := next(unchecked, None)) is not None:
            task = asyncio.create_task(self._preflight(claim.job_id), name=f"preflight {claim.job_id}")
            self.preflights[claim.job_id] = task

    def _waits(self, job_id: str) -> bool:
        return not self.closing and job_id in self.waiting

    def _leave(self, job_id: str) -> None:
        if (claim := self.waiting.pop(job_id, None)) is not None:
            del self.line[bisect_left(self.line, claim.rank, key=_rank)]

    def _start(self, claim: Claim) -> None:
        self.taken[claim.job_id] = claim
        self.unsettled.add(claim.job_id)
        task = asyncio.create_task(self.launch(claim.job_id), name=f"launch {claim.job_id}")
        self.launches[claim.job_id] = task
        task.add_done_callback(lambda _: self.launches.pop(claim.job_id, None))

    async def _free(self) -> Resources:
        total, available = await asyncio.to_thread(
            lambda: (self.runs.total_resources(), self.runs.available_resources())
        )
        self.promised = total - sum((claim.needs for claim in self.taken.values()), NOTHING)
        found = available - sum((self.taken[job_id].needs for job_id in self.unsettled), NOTHING)
        return Resources(min(self.promised.cpus, found.cpus), min(self.promised.gpus, found.gpus))

    async def _preflight(self, job_id: str) -> None:
        try:
            job = await asyncio.to_thread(self.store.get, job_id)
            await asyncio.to_thread(self.runs.preflight, job.job_spec.train, lambda: self._waits(job_id))
        except SpecRejected as error:
            await self.reject(job_id, error.reason, str(error))
        except Exception:  # only a clear no counts; the coordinator checks again
            logger.exception("could not check waiting job %s", job_id, extra={"job": job_id})
        finally:
            self.changed.set()


def _rank(claim: Claim) -> tuple[int, str]:
    return claim.rank
