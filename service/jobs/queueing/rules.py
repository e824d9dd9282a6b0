"""What the queue goes by: the limits of users, and the quotas and shares of projects."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from service.jobs.queueing.claims import NOTHING, Claim, Quotas
from service.projects.project import ProjectQuota
from trainers import Resources, size_words

NO_LIMITS = ProjectQuota()
EPSILON = 1e-9


class Refusal(NamedTuple):
    """A limit that keeps a job from starting, however much of the cluster is free."""

    reason: str
    """`UserLimit` or `ProjectQuota`."""
    why: str
    """The limit and what is used of it, as part of a sentence."""


@dataclass(frozen=True)
class Rules:
    """The limits as they are now."""

    users: Quotas = field(default_factory=Quotas)
    quotas: Mapping[str, ProjectQuota] = field(default_factory=dict)
    """Of each project; one that is not named has none."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """Weights of projects; 1 where none is named."""
    disk_bytes: Mapping[str, int] = field(default_factory=dict)
    """What the run folders of each project hold."""

    def refuses(self, claim: Claim, held: "Holdings", to: str = "out") -> Refusal | None:
        """The limit that keeps a claim from starting beside what its project and its user hold. to: `others`, where the
        job runs already and `held` leaves it out."""
        if (why := self._project_refuses(claim, held, to)) is not None:
            return Refusal("ProjectQuota", why)
        if (why := self.users.refuses(claim, held.of_user[claim.user])) is not None:
            return Refusal("UserLimit", why)
        return None

    def _project_refuses(self, claim: Claim, held: "Holdings", to: str) -> str | None:
        name, quota = claim.project, self.quotas.get(claim.project, NO_LIMITS)
        jobs, used, disk = held.jobs[name], held.used[name], self.disk_bytes.get(name, 0)
        if quota.jobs is not None and jobs >= quota.jobs:
            return f"project {name} runs {jobs} of its {quota.jobs} job{'' if quota.jobs == 1 else 's'}"
        for unit, most, has, more in (
            ("CPU", quota.cpus, used.cpus, claim.needs.cpus),
            ("GPU", quota.gpus, used.gpus, claim.needs.gpus),
        ):
            if most is not None and more > EPSILON and has + more > most + EPSILON:
                return f"project {name} has given {to} {has:g} of its {most:g} {unit}s, and the job needs {more:g}"
        if quota.disk_bytes is not None and disk > quota.disk_bytes:
            full = f"the runs of project {name} hold {size_words(disk)}, and {size_words(quota.disk_bytes)}"
            return f"{full} are its quota; delete some of them"
        return None


class Holdings:
    """What projects and users hold, as jobs start one after the other."""

    def __init__(self, held: Iterable[Claim]) -> None:
        self.jobs: dict[str, int] = defaultdict(int)
        """Project -> jobs that run."""
        self.used: dict[str, Resources] = defaultdict(lambda: NOTHING)
        """Project -> what they hold. A job counts with the workers that it has given up for another, as it gets them
        back, and with those that it was scaled to, also before there is room for them."""
        self.of_user: dict[str, list[Claim]] = defaultdict(list)
        for claim in held:
            self.add(claim)

    def add(self, claim: Claim) -> None:
        """One more job."""
        self.jobs[claim.project] += 1
        whole = claim.with_workers(max(claim.size.now, claim.size.wanted))
        self.used[claim.project] = self.used[claim.project] + whole.needs
        self.of_user[claim.user].append(claim)

    def dominant_share(self, project: str, total: Resources) -> float:
        """The larger of its shares of all CPUs and of all GPUs, 0 to 1 (dominant resource fairness, Ghodsi et al.
        2011). A job that was scaled beyond what there is has all of it."""
        used = self.used[project]
        share = max(used.cpus / total.cpus if total.cpus else 0.0, used.gpus / total.gpus if total.gpus else 0.0)
        return min(1.0, share)
