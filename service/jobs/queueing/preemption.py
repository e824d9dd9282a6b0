"""Preemption: running jobs of lower priority train with fewer workers while an urgent job needs their resources.

No job is stopped or restarted for it. A job gives up workers down to its `workers.min` and no further, and gets them
back afterwards.
"""

from collections.abc import Awaitable, Callable

from service.jobs.queueing.claims import Claim
from trainers import Resources

Scale = Callable[[str, int], Awaitable[bool]]
"""Asks a job to train with so many workers; returns whether it could be asked."""


class Preemption:
    """What the running jobs have given up, and could still give up."""

    def __init__(self, held: dict[str, Claim], scale: Scale) -> None:
        """held: What each running job holds now, by its id; kept up to date here."""
        self.held = held
        self.scale = scale

    @property
    def shrunk(self) -> list[str]:
        """Jobs with fewer workers than they should have."""
        return [claim.job_id for claim in self.held.values() if claim.size.now < claim.size.wanted]

    async def make_room(self, first: Claim, free: Resources) -> list[str]:
        """Take what the first of the queue lacks from less urgent jobs, if together they can give it. The least urgent
        and youngest jobs give first.

        Args:
            first: The first of the queue.
            free: What will be free once the jobs that were asked before have given it up.

        Returns:
            The jobs that give.
        """
        smaller = list[Claim]()
        for claim in sorted(self.held.values(), key=lambda one: one.rank, reverse=True):
            count = claim.size.now
            gives = claim.priority < first.priority and claim.project == first.project
            while gives and count > claim.size.least and not first.needs.fits(free):
                count, free = count - 1, free + claim.size.each
            if count < claim.size.now:
                smaller.append(claim.with_workers(count))
        if first.needs.fits(free):
            for claim in smaller:
                await self._change(claim)
            return self.shrunk
        return []

    async def give_back(self, free: Resources) -> None:
        """Give what is free to the jobs that have given, the most urgent and oldest first."""
        for claim in sorted(self.held.values(), key=lambda one: one.rank):
            count = claim.size.now
            while count < claim.size.wanted and claim.size.each.fits(free):
                count, free = count + 1, free - claim.size.each
            if count > claim.size.now:
                await self._change(claim.with_workers(count))

    def resized(self, job_id: str, workers: int) -> None:
        """The user of a running job has given it another size."""
        if (claim := self.held.get(job_id)) is not None:
            self.held[job_id] = claim.resized(workers)

    async def _change(self, claim: Claim) -> None:
        if await self.scale(claim.job_id, claim.size.now) and claim.job_id in self.held:
            self.held[claim.job_id] = claim
