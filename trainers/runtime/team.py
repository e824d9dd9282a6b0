"""A team: the workers that go on step by step together, generation after generation.

A synchronous run has one team, an asynchronous one a team for each worker or group. A generation ends when all is
trained, when the members are held to change, or when one of them dies; then those who live go on from the newest
version that one of them has, at the step after it.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import ray

from trainers.elastic.succession import Newest, newest_of
from trainers.errors import MillraceError
from trainers.runtime.crew import Hired
from trainers.runtime.gates import Gates
from trainers.runtime.messages import Begin, Ended

END_WITHIN_S = 5.0
"""What the others of a generation may take to end it once one has; who takes longer hangs."""


class Company(Protocol):
    """What a team needs of its run."""

    def begins(self, team: "Team") -> list[Begin]:
        """The next generation of its members, by rank; `team.newest` says where it begins."""
        ...

    def lost(self, team: "Team | None", worker: Hired, why: str, frames: str = "") -> None:
        """A member has died, or must be ended because it hangs or broke, `frames` say where.

        Raises:
            RunFailed: That was one too many.
        """
        ...

    def left(self, team: "Team", worker: Hired) -> None:
        """A member has left the training, as it was told to."""
        ...

    def waits(self, team: "Team") -> bool:
        """Whether a team must wait for more members before it goes on."""
        ...

    async def regrouped(self, team: "Team") -> None:
        """Between two generations: whatever the run must put right before the next."""
        ...


@dataclass(eq=False)
class Team:
    """Members by rank."""

    number: int
    members: list[Hired]
    company: Company
    joining: list[Hired] = field(default_factory=list)
    leaving: list[Hired] = field(default_factory=list)
    endings: Sequence[Ended] = ()
    """Of those who lived to the end of the last generation."""
    gates: Gates | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    stopping: bool = False
    size: int = 0
    """How many members it had at first."""

    def __post_init__(self) -> None:
        self.size = len(self.members) or 1

    async def train(self) -> None:
        """Until there is nothing left to train, nobody left to do it, or it is stopped."""
        while True:
            self._change()
            while self.company.waits(self) and not self.stopping:
                self.changed.clear()
                await self.changed.wait()
                self._change()
            if not self.members or await self._generation() or self.stopping:
                return
            await self.company.regrouped(self)

    async def join(self, worker: Hired) -> None:
        """Take in a worker that is ready, as soon as the step under way is over."""
        self.joining.append(worker)
        await self._hold()

    async def leave(self, worker: Hired) -> None:
        """Go on without a member as soon as the step under way is over."""
        self.leaving.append(worker)
        await self._hold()

    async def stop(self) -> None:
        """End with the step under way."""
        self.stopping = True
        await self._hold()

    async def meet(self) -> None:
        """Have the members make a snapshot after the step under way."""
        if self.gates is not None:
            await self.gates.meet()

    async def _hold(self) -> None:
        self.changed.set()
        if self.gates is not None:
            await self.gates.stop()

    @property
    def newest(self) -> Newest | None:
        """The newest version that a member has, best of one who stays; none before the first generation, and where the
        shards have it."""
        going = [worker.number for worker in self.leaving]
        members = [worker.number for worker in self.members]
        held = [one for one in self.endings if one.number in members]
        return newest_of(sorted(held, key=lambda one: one.number in going))

    def _change(self) -> None:
        """Take in who came, and let go who leaves. Whoever leaves and alone has the newest version stays for one more
        generation, behind the others, who get it at its beginning; it ends at once."""
        newest, everybody = self.newest, [*self.members, *self.joining]
        nodes = list(dict.fromkeys(worker.node for worker in everybody))
        staying = [worker for worker in everybody if worker not in self.leaving]
        staying.sort(key=lambda worker: nodes.index(worker.node))  # neighbours sum neighbours' gradients
        leaving = [worker for worker in everybody if worker in self.leaving]
        keepers = [worker for worker in leaving if staying and newest is not None and worker.number == newest.number]
        self.members, self.joining, self.leaving = staying + keepers, [], keepers
        for worker in leaving:
            if worker not in keepers:
                self.company.left(self, worker)

    async def _generation(self) -> bool:
        """Train one; whether there is nothing left to train."""
        begins = self.company.begins(self)
        gates = self.gates = Gates(begins[0].exchange.generation, list(self.members))
        calls = {
            asyncio.create_task(_result(worker.actor.train.options(concurrency_group="train").remote(begin))): worker
            for worker, begin in zip(self.members, begins, strict=True)
        }
        if self.joining or self.leaving or self.stopping:  # somebody came while this was being made
            await gates.stop()
        ended = await self._ends(calls, gates.generation)
        self.gates = None
        missed = any(one.lost for one in ended) or len(ended) < len(begins)
        self.endings = ended
        return not missed and not gates.stopped

    async def _ends(self, calls: dict[asyncio.Task[Ended], Hired], generation: int) -> list[Ended]:
        """How it ended for those who live; the others are struck off."""
        ended: list[Ended] = []
        pending, deadline = set(calls), None
        while pending:
            left = None if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())
            done, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            for call in done:
                error = call.exception()
                if error is None:
                    ended.append(call.result())
                elif (fault := _fault(error)) is not None:
                    self._lose(calls[call], calls[call].fault or fault, str(error))
                else:
                    await self._close([calls[other] for other in pending], generation)
                    raise error
            if deadline is None and pending and (len(ended) < len(calls) - len(pending) or any(e.lost for e in ended)):
                deadline = asyncio.get_running_loop().time() + END_WITHIN_S
                await self._close([calls[call] for call in pending], generation)
            elif not done:
                for call in pending:
                    self._lose(calls[call], f"did not end a step within {END_WITHIN_S:g} s of another's death")
                    call.cancel()
                break
        return ended

    async def _close(self, workers: Sequence[Hired], generation: int) -> None:
        for worker in workers:
            with suppress(ray.exceptions.RayActorError):
                worker.ask("close", generation)

    def _lose(self, worker: Hired, why: str, frames: str = "") -> None:
        self.members.remove(worker)
        self.company.lost(self, worker, why, frames)


async def _result(reference: Any) -> Ended:
    found: Ended = await reference
    return found


def _fault(error: BaseException) -> str | None:
    """Why a worker is lost; None for an error of the run itself, that another worker would meet too."""
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, MillraceError):
        return None
    if isinstance(error, ray.exceptions.RayActorError):
        return "died"
    return f"broke: {type(cause).__name__}: {cause}"
