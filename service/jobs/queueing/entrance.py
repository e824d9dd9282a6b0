"""What may enter the queue: jobs that could start at some time, on this cluster and within their project's quota."""

import asyncio
import time

from service.errors import NeverFits, SpecInvalid
from service.jobs.queueing.claims import Claim
from service.jobs.queueing.growth import REMEDY
from service.jobs.queueing.queue import JobQueue
from service.jobs.queueing.rules import Holdings
from service.spec import JobSpec
from trainers import FieldError, Resources

TOTAL_FOR_S = 1.0
"""How long the cluster's size counts as known: a burst of submissions does not ask for it each time."""


class Entrance:
    """Looks at specs before they become jobs, and at running jobs before they grow."""

    def __init__(self, queue: JobQueue) -> None:
        self.queue = queue
        self.total: tuple[float, Resources] | None = None
        """What the cluster had, and when."""

    async def check(self, spec: JobSpec, user: str) -> None:
        """Raise unless the job could start.

        Raises:
            SpecInvalid: There is no such project.
            NeverFits: The cluster could never start it, or its user or its project may never hold so much.
        """
        self.check_project(spec.project, "/project")
        if (why := self.queue.growth.refuses(spec, await self._total())) is not None:
            raise NeverFits(why)
        needs = self.queue.runs.needs(spec)
        if (limit := self.refuses(needs, user, spec.project)) is not None:
            amount = f"the job needs {needs.cpus:g} CPUs and {needs.gpus:g} GPUs at once"
            raise NeverFits(f"{amount}, and {limit}; {REMEDY}")

    def check_project(self, name: str, pointer: str) -> None:
        """Raise SpecInvalid, with a pointer, unless there is such a project."""
        names = [project.name for project in self.queue.projects.all()]
        if name not in names:
            told = f"there is no project {name!r}; there are {', '.join(names[:20])}; an admin creates others"
            raise SpecInvalid([FieldError(pointer=pointer, message=told)])

    def refuses(self, needs: Resources, user: str, project: str) -> str | None:
        """The limit by which a user may never hold so much in a project, as part of a sentence."""
        quota = self.queue.projects.quota(project)
        for unit, most, wanted in (("CPU", quota.cpus, needs.cpus), ("GPU", quota.gpus, needs.gpus)):
            if most is not None and wanted > most:
                return f"project {project} may hold {most:g} {unit}s at once"
        return self.queue.quotas.refuses(Claim("", user, 0, needs, project=project), ())

    def refuses_growth(self, job_id: str, workers: int) -> str | None:
        """The limit by which a running job may not have so many workers now, as part of a sentence."""
        claim = self.queue.held.get(job_id)
        if claim is None or workers <= max(claim.size.now, claim.size.wanted):
            return None
        others = Holdings(one for one in self.queue.held.values() if one.job_id != job_id)
        refusal = self.queue.rules().refuses(claim.with_workers(workers), others, to="others")
        return None if refusal is None else refusal.why

    async def whole_cluster(self) -> Resources:
        """What the cluster has, and may still get."""
        total = await self._total()
        return total + self.queue.growth.beyond(total)

    async def _total(self) -> Resources:
        """What the cluster has, at most a second ago."""
        if self.total is None or time.monotonic() - self.total[0] > TOTAL_FOR_S:
            self.total = time.monotonic(), await asyncio.to_thread(self.queue.runs.total_resources)
        return self.total[1]
