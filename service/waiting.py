"""Why each waiting job waits, in which place, and about how long: a look ahead through the ends of what runs now."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from trainers import Resources

NOTHING = Resources(0.0, 0.0)
AHEAD = 200
"""Places for which the look ahead is made; whoever stands further behind is told his place."""


@dataclass(frozen=True)
class Size:
    """How many workers a job has, should have, and can do with."""

    now: int = 0
    wanted: int = 0
    least: int = 0
    each: Resources = NOTHING
    """What one of them takes."""


@dataclass(frozen=True)
class Claim:
    """What a job takes, or waits for."""

    job_id: str
    user: str
    priority: int
    needs: Resources
    size: Size = Size()

    @property
    def rank(self) -> tuple[int, str]:
        """Sorts the line: priority first, then first come, first served."""
        return -self.priority, self.job_id

    def with_workers(self, count: int) -> "Claim":
        """The same job with so many."""
        more, size = count - self.size.now, replace(self.size, now=count)
        return replace(self, needs=self.needs + size.each * more, size=size)


@dataclass(frozen=True)
class Rules:
    """What one user may have at once, and how long ended jobs are kept. None: no limit."""

    running_jobs: int | None = None
    cpus: float | None = None
    gpus: float | None = None
    waiting_jobs: int | None = None
    keep_s: float | None = None

    def refuses(self, claim: Claim, held: Iterable[Claim]) -> str | None:
        """Which limit keeps the claim from starting beside what its user holds already; a sentence's middle."""
        if self.running_jobs is self.cpus is self.gpus is None:
            return None
        mine = [one for one in held if one.user == claim.user]
        cpus, gpus = (sum(getattr(one.needs, name) for one in (*mine, claim)) for name in ("cpus", "gpus"))
        if self.running_jobs is not None and len(mine) >= self.running_jobs:
            return f"{claim.user} may run {_jobs(self.running_jobs)} at once"
        if self.cpus is not None and cpus > self.cpus:
            return f"{claim.user} may hold {self.cpus:g} CPUs at once"
        if self.gpus is not None and gpus > self.gpus:
            return f"{claim.user} may hold {self.gpus:g} GPUs at once"
        return None


@dataclass(frozen=True)
class Outlook:
    """Of one waiting job."""

    place: int
    reason: str
    message: str
    starts_in_s: float | None
    """None where nobody can know."""


def outlooks(
    line: Sequence[Claim],
    held: Sequence[tuple[Claim, float | None]],
    free: Resources,
    rules: Rules,
    giving_way: Collection[str] = (),
) -> dict[str, Outlook]:
    """For each of the first jobs of the line. held: what runs, with the seconds that it goes on, where that is known;
    giving_way: which of these make room for the first."""
    ends = [(math.inf if left is None else left, claim.job_id, claim) for claim, left in held]
    heapify(ends)
    running = [claim for claim, _ in held]
    now, first = 0.0, None
    found: dict[str, Outlook] = {}
    for place, claim in enumerate(line[:AHEAD], 1):
        if (limit := rules.refuses(claim, running)) is not None:
            found[claim.job_id] = Outlook(place, "UserLimit", f"{_place(place)}: waits, since {limit}", None)
            continue
        lacking = _lacking(claim.needs, free)
        holders = []
        while not claim.needs.fits(free) and ends:
            now, holder, ended = heappop(ends)
            free += ended.needs
            holders.append(holder)
        fits = claim.needs.fits(free)
        starts_in_s = now if fits and math.isfinite(now) else None
        if first is not None:
            why = f"waits behind job {first}"
        elif not holders and fits:
            why = "starts next"
        else:
            why = f"waits for {_amount(lacking)} held by {_holders(holders if fits else [])}"
            why += f"; {_named(sorted(giving_way))} gives way" if giving_way else ""
        first = first or claim.job_id
        about = f", about {_duration(starts_in_s)}" if starts_in_s else ""
        reason = "WaitsForResources" if first == claim.job_id else "WaitsInLine"
        found[claim.job_id] = Outlook(place, reason, f"{_place(place)}: {why}{about}", starts_in_s)
        free -= claim.needs
        heappush(ends, (math.inf, claim.job_id, claim))  # when it will end, nobody knows before it has begun
    return found


def far_behind(place: int) -> Outlook:
    """Of one beyond the look ahead."""
    return Outlook(place, "WaitsInLine", f"{_place(place)}: waits for those before it", None)


def _lacking(needs: Resources, free: Resources) -> Resources:
    return Resources(max(0.0, needs.cpus - max(0.0, free.cpus)), max(0.0, needs.gpus - max(0.0, free.gpus)))


def _amount(needs: Resources) -> str:
    parts = [(needs.cpus, "CPU"), (needs.gpus, "GPU")]
    words = [f"{count:g} {unit}{'' if count == 1 else 's'}" for count, unit in parts if count > 0]
    return " and ".join(words) or "its turn"


def _holders(holders: Sequence[str]) -> str:
    """Who must end; the last of them decides when."""
    if not holders:
        return "others on the cluster"
    last, others = holders[-1], len(holders) - 1
    return f"job {last}" if not others else f"job {last} and {others} other{'' if others == 1 else 's'}"


def _named(jobs: Sequence[str]) -> str:
    return f"job {jobs[0]}" if len(jobs) == 1 else "jobs " + ", ".join(jobs)


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"


def _place(place: int) -> str:
    return "first in the queue" if place == 1 else f"number {place} in the queue"


def _duration(seconds: float) -> str:
    minutes = math.ceil(seconds / 60)
    if seconds < 60:
        return f"{math.ceil(seconds)} s"
    return f"{minutes} min" if minutes < 120 else f"{round(seconds / 3600)} h"
