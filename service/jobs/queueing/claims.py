"""What jobs claim of the cluster, and what each user may claim."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from trainers import Resources

NOTHING = Resources(0.0, 0.0)


@dataclass(frozen=True)
class Size:
    """How many workers a job has, how many it should have, and how few are enough."""

    now: int = 0
    wanted: int = 0
    least: int = 0
    each: Resources = NOTHING
    """What one worker takes."""


@dataclass(frozen=True)
class Claim:
    """What a job holds, or waits for."""

    job_id: str
    user: str
    priority: int
    needs: Resources
    size: Size = Size()
    project: str = "default"
    ends_s: float | None = None
    """When its deadline stops it, in seconds since 1970; none: never."""

    @property
    def rank(self) -> tuple[int, str]:
        """Sorts the queue: priority first, then first come, first served."""
        return -self.priority, self.job_id

    def with_workers(self, count: int) -> "Claim":
        """The same job with so many workers."""
        more, size = count - self.size.now, replace(self.size, now=count)
        return replace(self, needs=self.needs + size.each * more, size=size)

    def resized(self, count: int) -> "Claim":
        """The same job with so many workers, which should have no other number."""
        claim = self.with_workers(count)
        return replace(claim, size=replace(claim.size, wanted=count))


@dataclass(frozen=True)
class Quotas:
    """What one user may have at once, and how long ended jobs are kept. None: no limit."""

    running_jobs: int | None = None
    cpus: float | None = None
    gpus: float | None = None
    waiting_jobs: int | None = None
    keep_s: float | None = None

    def refuses(self, claim: Claim, held: Iterable[Claim]) -> str | None:
        """The quota that keeps a claim from starting beside what its user holds already, as part of a sentence."""
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


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"
