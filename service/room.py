"""Room for an urgent job: running jobs of lower priority go on with fewer workers, and get them back afterwards.

Nothing is stopped or restarted for it. A job gives workers down to its `workers.min` and no further.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from service.waiting import Claim
from trainers import Resources

Scale = Callable[[str, int], Awaitable[bool]]
"""Has so many workers train a job; whether it could be told."""


class Room:
    """What the jobs that run can give, and have given."""

    def __init__(self, taken: dict[str, Claim], scale: Scale) -> None:
        """taken: What each running job takes now, by its id; kept up to date here."""
        self.taken = taken
        self.scale = scale

    @property
    def givers(self) -> list[str]:
        """Jobs with fewer workers than they should have."""
        return [claim.job_id for claim in self.taken.values() if claim.size.now < claim.size.wanted]

    async def make(self, first: Claim, free: Resources) -> list[str]:
        """Take from less urgent jobs what the first of the line lacks, if together they can give it; the least urgent
        and youngest give first.

        Args:
            first: The first of the line.
            free: What will be, once those that were asked before have given.

        Returns:
            Who gives.
        """
        smaller = list[Claim]()
        for claim in sorted(self.taken.values(), key=lambda one: one.rank, reverse=True):
            count = claim.size.now
            while claim.priority < first.priority and count > claim.size.least and not first.needs.fits(free):
                count, free = count - 1, free + claim.size.each
            if count < claim.size.now:
                smaller.append(claim.with_workers(count))
        if first.needs.fits(free):
            for claim in smaller:
                await self._change(claim)
            return self.givers
        return []

    async def give_back(self, free: Resources) -> None:
        """Give what is free to those that have given, the most urgent and oldest first."""
        for claim in sorted(self.taken.values(), key=lambda one: one.rank):
            count = claim.size.now
            while count < claim.size.wanted and claim.size.each.fits(free):
                count, free = count + 1, free - claim.size.each
            if count > claim.size.now:
                await self._change(claim.with_workers(count))

    def wants(self, job_id: str, workers: int) -> None:
        """Its user has given a running job another size."""
        if (claim := self.taken.get(job_id)) is not None:
            claim = claim.with_workers(workers)
            self.taken[job_id] = replace(claim, size=replace(claim.size, wanted=workers))

    async def _change(self, claim: Claim) -> None:
        if await self.scale(claim.job_id, claim.size.now) and claim.job_id in self.taken:
            self.taken[claim.job_id] = claim
