"""Workers that go on step by step together, generation after generation.

A synchronous run has one group; an asynchronous run has one for each worker, or for each set of workers that sum their
gradients. A generation ends when everything is trained, when its members are held because the group changes, or when
one of them dies. The survivors go on from the newest version that one of them has, at the step after it.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from trainers.elastic.latest_version import latest_of
from trainers.errors import MillraceError
from trainers.runtime.actor_handles import WorkerHandle
from trainers.runtime.control.ending import frames_of
from trainers.runtime.control.run_events import EventQueue, GenerationEnded, WorkerLost
from trainers.runtime.gone import GONE, how
from trainers.training.messages import GenerationEnd, GenerationStart

END_WITHIN_S = 5.0
"""Once one worker has ended a generation, those that only wait for others end it as well, when they are woken; one that
does not within this time, and is in no step either, is lost."""


class GenerationGate:
    """Holds the workers of one generation in front of their next step. No step is interrupted."""

    def __init__(self, generation: int, workers: Sequence[WorkerHandle]) -> None:
        self.generation = generation
        self.workers = workers
        self.lock = asyncio.Lock()
        self.is_stopped = False

    async def stop(self) -> None:
        """Let all go on to the step that the furthest has begun, and no further."""
        async with self.lock:
            self.is_stopped = True
            with suppress(*GONE):  # the death of a worker ends the generation anyway
                await self._release(max(await self._hold()), None)

    async def meet(self) -> None:
        """Have the workers make a snapshot together after the step that the furthest has begun, unless they stop."""
        async with self.lock:
            if not self.is_stopped:
                with suppress(*GONE):
                    await self._release(None, max(await self._hold()))

    async def _hold(self) -> list[int]:
        return list(await asyncio.gather(*[worker.ask("hold", self.generation) for worker in self.workers]))

    async def _release(self, limit: int | None, meeting: int | None) -> None:
        calls = [worker.ask("release", self.generation, limit, meeting) for worker in self.workers]
        await asyncio.gather(*calls)


class WorkerGroup:
    """Trains one generation at a time, and says on the queue how it went. Its run decides what comes next."""

    def __init__(
        self,
        number: int,
        members: Sequence[WorkerHandle],
        events: EventQueue,
        endings: Sequence[GenerationEnd] = (),
        is_computing: Callable[[WorkerHandle], bool] = lambda _: False,
    ) -> None:
        """
        Args:
            endings: How its last generation ended, if that was under an earlier coordinator.
            is_computing: Whether a worker is in a step, as far as its heartbeats say.
        """
        self.number = number
        self.members = list(members)  # by rank
        self.events = events
        self.is_computing = is_computing
        self.endings = endings  # of the members that survived the last generation
        self.full_size = len(self.members) or 1
        self.joining: list[WorkerHandle] = []
        self.leaving: list[WorkerHandle] = []
        self.gate: GenerationGate | None = None
        self.is_stopping = False

    # -- its members ----------------------------------------------------------------------------------------------

    def join(self, worker: WorkerHandle) -> None:
        """Take in a worker that is ready as soon as this generation is over; `hold` ends it."""
        self.joining.append(worker)

    def leave(self, worker: WorkerHandle) -> None:
        """Go on without a member as soon as this generation is over."""
        self.leaving.append(worker)

    def stop(self) -> None:
        """Train nothing after this generation."""
        self.is_stopping = True

    @property
    def is_short(self) -> bool:
        """Whether it has fewer workers than it began with."""
        return len(self.members) + len(self.joining) < self.full_size

    @property
    def latest(self) -> GenerationEnd | None:
        """The newest version that a member has, preferably one that stays. None before the first generation, and where
        the shards have it."""
        leaving = [worker.number for worker in self.leaving]
        members = [worker.number for worker in self.members]
        held = [one for one in self.endings if one.number in members]
        return latest_of(sorted(held, key=lambda one: one.number in leaving))

    def change_members(self) -> list[WorkerHandle]:
        """Take in the workers that have joined, and return those that have left.

        If a worker that leaves is the only one with the newest version, it stays for one more generation, as the last
        rank: the others get the version from it when that begins, and it ends at once.
        """
        latest, everybody = self.latest, [*self.members, *self.joining]
        nodes = list(dict.fromkeys(worker.node for worker in everybody))
        staying = [worker for worker in everybody if worker not in self.leaving]
        staying.sort(key=lambda worker: nodes.index(worker.node))  # neighbours sum neighbours' gradients
        leaving = [worker for worker in everybody if worker in self.leaving]
        keepers = [worker for worker in leaving if staying and latest is not None and worker.number == latest.number]
        self.members, self.joining, self.leaving = staying + keepers, [], keepers
        return [worker for worker in leaving if worker not in keepers]

    # -- a generation ---------------------------------------------------------------------------------------------

    def train(self, starts: Sequence[GenerationStart]) -> Coroutine[Any, Any, None]:
        """Begin a generation; what is returned must run until it has ended. starts: By rank."""
        self.gate = GenerationGate(starts[0].endpoint.generation, list(self.members))
        return self._train(starts, self.gate)

    async def hold(self) -> None:
        """End the generation under way with the step under way, so that the group can change or stop."""
        if self.gate is not None:
            await self.gate.stop()

    async def meet(self) -> None:
        """Have the members make a snapshot after the step under way."""
        if self.gate is not None:
            await self.gate.meet()

    async def _train(self, starts: Sequence[GenerationStart], gate: GenerationGate) -> None:
        calls = {
            asyncio.create_task(_result(worker.actor.train.options(concurrency_group="train").remote(start))): worker
            for worker, start in zip(self.members, starts, strict=True)
        }
        try:
            if self.joining or self.leaving or self.is_stopping:
                await gate.stop()
            endings = await self._end(calls, gate.generation)
        finally:
            for call in calls:
                call.cancel()
        self.gate = None
        was_disturbed = gate.is_stopped or any(one.lost for one in endings) or len(endings) < len(starts)
        self.endings = endings
        self.events.put_nowait(GenerationEnded(self.number, is_complete=not was_disturbed))

    async def _end(
        self, calls: dict[asyncio.Task[GenerationEnd], WorkerHandle], generation: int
    ) -> list[GenerationEnd]:
        """How the generation ended for the workers that survived it; the others are members no more."""
        endings: list[GenerationEnd] = []
        pending, deadline_s = set(calls), None
        clock = asyncio.get_running_loop().time
        while pending:
            left_s = None if deadline_s is None else max(0.0, deadline_s - clock())
            done, pending = await asyncio.wait(pending, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            for call in done:
                error = call.exception()
                if error is None:
                    endings.append(call.result())
                elif (fault := _fault(error)) is not None:
                    self._lose(calls[call], calls[call].fault or fault, frames_of(error))
                else:
                    await _close([calls[other] for other in pending], generation)
                    raise error
            was_disturbed = len(endings) < len(calls) - len(pending) or any(one.lost for one in endings)
            if deadline_s is None and pending and was_disturbed:
                deadline_s = clock() + END_WITHIN_S
                await _close([calls[call] for call in pending], generation)
            elif not done:  # a worker in a step, which may take long, is judged by its heartbeats
                deaf = {call for call in pending if not self.is_computing(calls[call])}
                for call in deaf:
                    self._lose(calls[call], f"did not end a step within {END_WITHIN_S:g} s of another's death")
                pending -= deaf
                deadline_s = clock() + END_WITHIN_S
        return endings

    def _lose(self, worker: WorkerHandle, why: str, frames: str = "") -> None:
        self.members.remove(worker)
        self.events.put_nowait(WorkerLost(worker, why, frames))


async def _close(workers: Sequence[WorkerHandle], generation: int) -> None:
    """Wake the workers out of whatever they wait for in a generation."""
    for worker in workers:
        with suppress(*GONE):
            worker.ask("close", generation)


async def _result(reference: Any) -> GenerationEnd:
    found: GenerationEnd = await reference
    return found


def _fault(error: BaseException) -> str | None:
    """Why a worker is lost. None if the error is the run's own, and another worker would meet it too."""
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, MillraceError):
        return None
    if isinstance(error, GONE):
        return how(error)
    return f"broke: {type(cause).__name__}: {cause}"
