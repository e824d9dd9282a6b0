"""Why each waiting job waits, at which position, and for about how long: a look ahead at when running jobs end."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from service.jobs.queueing.claims import Claim
from service.jobs.queueing.policy import Decision
from trainers import Resources

LOOKAHEAD = 200
"""Waiting jobs for which the look ahead is made. Jobs further behind have a position and no estimate."""


@dataclass(frozen=True)
class Outlook:
    """Why one job waits."""

    position: int
    """In the queue, from 1."""
    reason: str
    message: str
    starts_in_s: float | None
    """None if it cannot be estimated."""


def outlooks(
    decision: Decision,
    held: Sequence[tuple[Claim, float | None]],
    free: Resources,
    shares: Mapping[str, float],
    shrinking: Collection[str] = (),
) -> dict[str, Outlook]:
    """The outlooks of the first jobs of the queue, by job id.

    Args:
        decision: In which order jobs start, and what holds them back.
        held: What running jobs hold, each with the seconds until it ends, if that is known.
        free: What no job holds.
        shares: Weights of projects.
        shrinking: Running jobs that give up workers for the first of the line.
    """
    ends = [(math.inf if left is None else left, claim.job_id, claim) for claim, left in held]
    heapify(ends)
    passing = {claim.job_id for claim in (*decision.beside, *decision.before)}
    now, first = 0.0, None
    found: dict[str, Outlook] = {}
    for position, claim in enumerate(decision.order[:LOOKAHEAD], 1):
        if (known := decision.refused.get(claim.job_id)) is not None:
            (reason, why), job = known
            behind = "" if job == claim.job_id else f"waits behind job {job}, which "
            found[claim.job_id] = Outlook(position, reason, f"{_ordinal(position)}: {behind}waits, since {why}", None)
            continue
        if claim.job_id in passing:
            why = f"starts next, beside job {first.job_id}, which it cannot delay" if first else "starts next"
            found[claim.job_id] = Outlook(position, "WaitsInLine", f"{_ordinal(position)}: {why}", None)
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
            why = f"waits behind job {first.job_id}{_of_project(first, claim, decision, shares)}"
        elif not holders and fits:
            why = "starts next"
        else:
            why = f"waits for {_amount(lacking)} held by {_holders(holders if fits else [])}"
            why += f"; {_named(sorted(shrinking))} gives way" if shrinking else ""
        first = first or claim
        about = f", about {_duration(starts_in_s)}" if starts_in_s else ""
        reason = "WaitsForResources" if first is claim else "WaitsInLine"
        found[claim.job_id] = Outlook(position, reason, f"{_ordinal(position)}: {why}{about}", starts_in_s)
        free -= claim.needs
        heappush(ends, (math.inf, claim.job_id, claim))  # nobody knows when it will end before it has begun
    return found


def _of_project(first: Claim, claim: Claim, decision: Decision, shares: Mapping[str, float]) -> str:
    """Why the first job is another project's, if it is."""
    if first.project == claim.project:
        return ""
    held, weights = (
        [values.get(one.project, default) for one in (first, claim)]
        for values, default in ((decision.shares, 0.0), (shares, 1.0))
    )
    return (
        f" of project {first.project}, which holds {held[0]:.0%} of the cluster for a share of {weights[0]:g}; project "
        f"{claim.project} holds {held[1]:.0%} for a share of {weights[1]:g}"
    )


def far_behind(position: int) -> Outlook:
    """The outlook of a job beyond the look ahead."""
    return Outlook(position, "WaitsInLine", f"{_ordinal(position)}: waits for those before it", None)


def _lacking(needs: Resources, free: Resources) -> Resources:
    return Resources(max(0.0, needs.cpus - max(0.0, free.cpus)), max(0.0, needs.gpus - max(0.0, free.gpus)))


def _amount(needs: Resources) -> str:
    parts = [(needs.cpus, "CPU"), (needs.gpus, "GPU")]
    amounts = [f"{count:g} {unit}{'' if count == 1 else 's'}" for count, unit in parts if count > 0]
    return " and ".join(amounts) or "its turn"


def _holders(holders: Sequence[str]) -> str:
    """The jobs that must end; the last of them decides when."""
    if not holders:
        return "others on the cluster"
    last, others = holders[-1], len(holders) - 1
    return f"job {last}" if not others else f"job {last} and {others} other{'' if others == 1 else 's'}"


def _named(jobs: Sequence[str]) -> str:
    return f"job {jobs[0]}" if len(jobs) == 1 else "jobs " + ", ".join(jobs)


def _ordinal(position: int) -> str:
    return "first in the queue" if position == 1 else f"number {position} in the queue"


def _duration(seconds: float) -> str:
    minutes = math.ceil(seconds / 60)
    if seconds < 60:
        return f"{math.ceil(seconds)} s"
    return f"{minutes} min" if minutes < 120 else f"{round(seconds / 3600)} h"
