"""Which waiting jobs start now: a pure function of who waits, what is held and what is free.

1. **Quotas.** A job whose project or user is at a limit waits, and with it those behind it of the same project, or of
   the same user in it. It holds up nobody else.
2. **Fair share.** Of the projects with waiting jobs, the one with the smallest dominant share of the cluster by its
   weight comes first (weighted dominant resource fairness, Ghodsi et al. 2011), of equals the one whose last start is
   longest ago, and within a project priority, then time. With one project this is the line itself.
3. **Reservation.** The first job that does not fit is reserved: what becomes free is kept for it. Its project keeps its
   turn until a job of it has started, however the shares move meanwhile.
4. **Backfill.** A job behind it may start if it cannot delay it: it takes only what the reserved job leaves, or its
   deadline passes before the deadlines of running jobs promise the reserved one its room (EASY, Lifka 1995, with
   deadlines for run times).
"""

from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from service.jobs.queueing.claims import Claim
from service.jobs.queueing.rules import EPSILON, Holdings, Refusal, Rules
from service.jobs.queueing.turns import Turns
from trainers import Resources

BACKFILL_AHEAD = 200
"""How many jobs behind the reserved one are looked at."""


@dataclass
class Decision:
    """What follows from the policy."""

    starts: list[Claim] = field(default_factory=list)
    """Jobs that start, in this order."""
    reserved: Claim | None = None
    """The first that does not fit."""
    beside: list[Claim] = field(default_factory=list)
    """Jobs behind the reserved one that take only what it leaves."""
    before: list[Claim] = field(default_factory=list)
    """Jobs behind it that end by their deadlines before its room is promised."""
    order: list[Claim] = field(default_factory=list)
    """All that were looked at, in their order, those that a limit holds back among them."""
    refused: dict[str, tuple[Refusal, str]] = field(default_factory=dict)
    """Job -> the limit that holds it back, and the first job that it holds back of the same project or user."""
    shares: dict[str, float] = field(default_factory=dict)
    """Project with waiting jobs -> its dominant share of the cluster now, 0 to 1."""


def decide(
    line: Sequence[Claim],
    held: Collection[Claim],
    resources: tuple[Resources, Resources],
    rules: Rules,
    turns: Turns | None = None,
) -> Decision:
    """Which of the waiting jobs start.

    Args:
        line: The waiting jobs, by priority and time.
        held: What running jobs hold.
        resources: What the cluster has, and what of it is free.
        rules: Limits and shares.
        turns: Whose turn it is, and who started last, as it was before this decision; it is not changed.
    """
    total, free = resources
    holdings, decision = Holdings(held), Decision()
    turns = Turns() if turns is None else turns.copy()
    queues = _by_project(line)
    decision.shares = {name: holdings.dominant_share(name, total) for name in queues}
    limited: dict[str | tuple[str, str], tuple[Refusal, str]] = {}
    promised_s: float | None = None
    room, num_behind = free, 0
    while queues and num_behind <= BACKFILL_AHEAD:
        project = min(queues, key=lambda name: _rank(name, queues, holdings, total, rules, turns))
        claim = queues[project].popleft()
        if not queues[project]:
            del queues[project]
        decision.order.append(claim)
        known = limited.get(project) or limited.get((project, claim.user))
        if known is None and (refusal := rules.refuses(claim, holdings)) is not None:
            known = refusal, claim.job_id
            limited[project if refusal.reason == "ProjectQuota" else (project, claim.user)] = known
        if known is not None:
            decision.refused[claim.job_id] = known
            continue
        num_behind += decision.reserved is not None
        if decision.reserved is None and claim.needs.fits(room):
            decision.starts.append(claim)
            turns.started(project)
        elif decision.reserved is None:
            decision.reserved = claim
            promised_s = _promised_s(claim, room, [*held, *decision.starts])
        elif not claim.needs.fits(room):
            continue
        elif _leaves(claim.needs, room, decision.reserved.needs):
            decision.beside.append(claim)
        elif promised_s is not None and claim.ends_s is not None and claim.ends_s <= promised_s:
            decision.before.append(claim)
        else:
            continue
        holdings.add(claim)
        room = room if claim is decision.reserved else room - claim.needs
    return decision


def _by_project(line: Sequence[Claim]) -> dict[str, deque[Claim]]:
    projects = {claim.project for claim in line}
    if len(projects) == 1:  # divided one by one, a line of thousands took longer than all that is decided
        return {projects.pop(): deque(line)}
    queues = defaultdict[str, deque[Claim]](deque)
    for claim in line:
        queues[claim.project].append(claim)
    return queues


def _rank(
    project: str, queues: dict[str, deque[Claim]], holdings: Holdings, total: Resources, rules: Rules, turns: Turns
) -> tuple[bool, float, int, str]:
    """Sorts projects: the one whose turn it is, then the smallest use of its share, then the one that has started
    nothing for longest, then the oldest of their first jobs. Neither priority nor age counts before that: urgent jobs
    of one project, or an old one that urgent ones pass for ever, would keep another project waiting for ever."""
    if len(queues) == 1:
        return False, 0.0, 0, ""
    use = holdings.dominant_share(project, total) / rules.shares.get(project, 1.0)
    return project != turns.holder, use, turns.last_start.get(project, 0), queues[project][0].job_id


def _leaves(needs: Resources, free: Resources, reserved: Resources) -> bool:
    """Whether a job leaves to the reserved one all of it that is free: what it takes of CPUs or of GPUs is more than
    the reserved job will need."""
    return all(
        takes <= EPSILON or has - takes >= keeps - EPSILON
        for takes, has, keeps in (
            (needs.cpus, free.cpus, reserved.cpus),
            (needs.gpus, free.gpus, reserved.gpus),
        )
    )


def _promised_s(reserved: Claim, free: Resources, held: Collection[Claim]) -> float | None:
    """When deadlines will have made room for the reserved job at the latest, in seconds since 1970; none if they never
    do."""
    for claim in sorted((one for one in held if one.ends_s is not None), key=lambda one: one.ends_s or 0.0):
        free = free + claim.needs
        if reserved.needs.fits(free):
            return claim.ends_s
    return None
