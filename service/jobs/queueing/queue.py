"""The queue: the waiting jobs in the order in which they start, and what the admitted jobs hold of the cluster."""

import asyncio
import math
import time
from bisect import bisect_left, insort
from collections.abc import Collection
from dataclasses import replace

from service.database.job_store import Job
from service.jobs.active_jobs import ActiveJobs
from service.jobs.queueing.claims import NOTHING, Claim, Quotas, Size
from service.jobs.queueing.growth import Growth
from service.jobs.queueing.policy import Decision, decide
from service.jobs.queueing.queue_outlook import LOOKAHEAD, Outlook, far_behind, outlooks
from service.jobs.queueing.rules import Holdings, Rules
from service.jobs.queueing.turns import Turns
from service.jobs.runs import Runs
from service.projects.projects import Projects
from service.spec import JobSpec
from trainers import Resources, State

OUTLOOKS_FOR_S = 1.0
"""How long an outlook stays true enough to be shown."""


class JobQueue:
    """Knows what waits and what is held. It counts what admitted jobs hold itself, because Ray's count lags behind."""

    def __init__(
        self, runs: Runs, active: ActiveJobs, projects: Projects, quotas: Quotas, growth: Growth | None = None
    ) -> None:
        """growth: What the cluster may become; none: it stays as it is."""
        self.runs = runs
        self.active = active
        self.projects = projects
        self.quotas = quotas
        self.growth = growth or Growth()
        self.waiting: dict[str, Claim] = {}
        """Waiting jobs. While a job waits, no coordinator writes its log."""
        self.line: list[Claim] = []
        """The same jobs by priority and time: the order in which those of one project start."""
        self.came_s = -math.inf
        """When the last of them came, on the monotonic clock."""
        self.checked: set[str] = set()
        """Waiting jobs whose preflight has begun."""
        self.held: dict[str, Claim] = {}
        """What admitted jobs hold."""
        self.unsettled: set[str] = set()
        """Admitted jobs that may not hold yet, as Ray counts it, what they need."""
        self.blocked: tuple[int, str] | None = None
        """Rank of the reserved job. What is added behind it cannot start before it does, but beside it."""
        self.spare = NOTHING
        """What the reserved job leaves."""
        self.turns = Turns()
        self.shrinking: Collection[str] = ()
        """Running jobs that give up workers for the blocked one."""
        self.disk_bytes: dict[str, int] = {}
        """What the run folders of each project hold, as far as it was measured."""
        self.total = self.free = NOTHING
        self.promised = NOTHING
        """What will be free once Ray's count has caught up with what jobs were asked to give up."""
        self.outlooks: dict[str, Outlook] = {}
        self.outlooks_s = 0.0
        self.changed = asyncio.Event()

    def add(self, claim: Claim) -> None:
        """The job may start from now on."""
        self.remove(claim.job_id)
        self.waiting[claim.job_id] = claim
        self.came_s = time.monotonic()
        insort(self.line, claim, key=_rank)
        if self.blocked is None or claim.rank <= self.blocked or claim.needs.fits(self.spare):
            self.changed.set()

    def reprioritise(self, job_id: str, priority: int) -> None:
        """Move a waiting job in the line; a running one gives way to others than before."""
        if (claim := self.waiting.get(job_id)) is not None:
            self.add(replace(claim, priority=priority))
        if (claim := self.held.get(job_id)) is not None:
            self.held[job_id] = replace(claim, priority=priority)
        self.look_again()  # also where the job that the others wait for went behind them

    def look_again(self) -> None:
        """What decides who starts has changed."""
        self.outlooks_s = 0.0
        self.changed.set()

    def remove(self, job_id: str) -> None:
        """The job does not wait any more."""
        if (claim := self.waiting.pop(job_id, None)) is not None:
            del self.line[bisect_left(self.line, claim.rank, key=_rank)]

    def admit(self, claim: Claim) -> None:
        """The job is started, and holds what it claims."""
        self.held[claim.job_id] = claim
        self.unsettled.add(claim.job_id)
        self.turns.started(claim.project)

    def occupy(self, job: Job, workers: int) -> None:
        """Count a job that was found running, with so many workers."""
        claim = self.claim(job)
        self.held[job.id] = claim.with_workers(workers) if workers else claim

    def settled(self, job_id: str) -> None:
        """The job holds its resources, so Ray's count includes them."""
        self.unsettled.discard(job_id)
        self.changed.set()

    def release(self, job_id: str) -> None:
        """The job holds nothing, and does not wait."""
        self.remove(job_id)
        self.held.pop(job_id, None)
        self.checked.discard(job_id)
        self.settled(job_id)

    def claim(self, job: Job, spec: JobSpec | None = None) -> Claim:
        """What a job takes with its own spec, or with another one."""
        spec = job.job_spec if spec is None else spec
        workers = spec.workers
        size = Size(workers.count, workers.count, workers.min, Resources(workers.cpus, workers.gpus))
        ends_s = None if spec.deadline_s is None else job.created + spec.deadline_s
        return Claim(job.id, job.user, job.priority, self.runs.needs(spec), size, job.project, ends_s)

    async def measure(self) -> None:
        """Find out what is free now. What the cluster may still get counts as free: a job that is started there makes
        the cluster grow."""
        total, available = await asyncio.to_thread(
            lambda: (self.runs.total_resources(), self.runs.available_resources())
        )
        coming = self.growth.beyond(total)
        self.total = total + coming
        self.promised = self.total - sum((claim.needs for claim in self.held.values()), NOTHING)
        found = available + coming - sum((self.held[job_id].needs for job_id in self.unsettled), NOTHING)
        self.free = Resources(min(self.promised.cpus, found.cpus), min(self.promised.gpus, found.gpus))

    def holdings(self) -> Holdings:
        """What projects hold at this moment: workers that a job gets back or was scaled to count once they train."""
        claims = []
        for claim in self.held.values():
            active = self.active.get(claim.job_id)
            trains = active is not None and active.log.progress.state in (State.RUNNING, State.RECOVERING)
            workers = len(active.log.progress.workers) if active is not None and trains else 0
            claims.append(claim.resized(workers or claim.size.now))
        return Holdings(claims)

    def rules(self) -> Rules:
        """Limits and shares as they are now."""
        projects = self.projects.all()
        quotas, shares = ({one.name: getattr(one, part) for one in projects} for part in ("quota", "share"))
        return Rules(self.quotas, quotas, shares, self.disk_bytes)

    def decide(self) -> Decision:
        """Which jobs start, by what was free when that was last measured."""
        return decide(self.line, self.held.values(), (self.total, self.free), self.rules(), self.turns)

    def reserve(self, claim: Claim | None) -> None:
        """Keep what becomes free for this job, or for none."""
        self.blocked, self.turns.holder = (None, None) if claim is None else (claim.rank, claim.project)
        rest = NOTHING if claim is None else self.free - claim.needs
        self.spare = Resources(max(0.0, rest.cpus), max(0.0, rest.gpus))

    def outlook(self, job_id: str) -> Outlook | None:
        """Why the job waits and how long, if it waits."""
        if job_id not in self.waiting:
            return None
        if time.monotonic() - self.outlooks_s > OUTLOOKS_FOR_S:
            self.outlooks_s = time.monotonic()
            held = [(claim, self.active.eta_s(claim.job_id)) for claim in self.held.values()]
            self.outlooks = outlooks(self.decide(), held, self.free, self.rules().shares, self.shrinking)
        if (found := self.outlooks.get(job_id)) is not None or len(self.line) <= LOOKAHEAD:
            return found
        position = bisect_left(self.line, self.waiting[job_id].rank, key=_rank) + 1
        return far_behind(max(position, LOOKAHEAD + 1))


def _rank(claim: Claim) -> tuple[int, str]:
    return claim.rank
