"""A project: what its jobs may hold together, how large its share of the cluster is, who submits into it, and who
administers it."""

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from trainers import Documented

DEFAULT = "default"
"""The project of every job that names none. Everybody is a member, and it has no quotas unless an admin sets some."""
EVERYBODY = "*"
MAX_MEMBERS = 1000
PROJECT_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
FOR_THE_SERVICE = frozenset({"share", "quota"})
"""What a project's own admins may not change: more of it for one project is less for all others."""

Member = Annotated[str, Field(pattern=r"^(\*|[A-Za-z0-9][A-Za-z0-9._@-]{0,62})$")]
Person = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,62}$")]
Count = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
Amount = Annotated[float, Field(strict=True, ge=0, le=1e9, allow_inf_nan=False)]
Bytes = Annotated[int, Field(strict=True, ge=0, le=2**60)]
Share = Annotated[float, Field(strict=True, ge=0.001, le=1000, allow_inf_nan=False)]


class ProjectQuota(Documented):
    """What the jobs of a project may have together. Null: no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    jobs: Count | None = None
    """Jobs that run at once, the trials of sweeps among them."""
    cpus: Amount | None = None
    """CPUs that running jobs hold."""
    gpus: Amount | None = None
    """GPUs that running jobs hold."""
    disk_bytes: Bytes | None = None
    """Bytes in the run folders of all its jobs, also of those that have ended. Where they have more, none starts."""

    @property
    def given(self) -> dict[str, Any]:
        """The limits that were named, null among them."""
        return self.model_dump(include=self.model_fields_set)


class Project(Documented):
    """One project."""

    model_config = ConfigDict(frozen=True, from_attributes=True)

    name: str
    created: float
    """Seconds since 1970."""
    share: float
    """Its weight where projects compete: one of 2.0 gets twice as much as one of 1.0."""
    members: tuple[str, ...]
    """Who may submit into it, besides admins; `*` stands for everybody."""
    admins: tuple[str, ...] = ()
    """Its own admins: they submit into it, choose its members, and may stop, change and delete any of its jobs."""
    quota: ProjectQuota

    def admits(self, user: str) -> bool:
        """Whether a user may submit into it."""
        return EVERYBODY in self.members or user in self.members or user in self.admins


class ProjectUse(Documented):
    """What the jobs of a project have now."""

    model_config = ConfigDict(frozen=True)

    jobs: int
    """Jobs that run, the trials of sweeps among them."""
    waiting: int
    """Jobs that wait in the queue."""
    cpus: float
    """What workers that train now hold, and shards."""
    gpus: float
    disk_bytes: int
    """Bytes in the run folders of all its jobs, as they were measured last."""
    of_cluster: float
    """The larger of its shares of all CPUs and of all GPUs, 0 to 1. By its `share`, this decides whose turn it
    is; workers that its jobs get back or wait for count there, too."""


class ProjectView(Project):
    """A project, and what it uses."""

    use: ProjectUse


class ProjectChanges(Documented):
    """What of a project changes. Only the fields that are sent do, and in `quota` only the limits that are sent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    share: Share = 1.0
    """Its weight where projects compete for the cluster."""
    members: Annotated[tuple[Member, ...], Field(max_length=MAX_MEMBERS)] = (EVERYBODY,)
    """Users who may submit into it, besides admins, all of them; `*` stands for everybody."""
    admins: Annotated[tuple[Person, ...], Field(max_length=MAX_MEMBERS)] = ()
    """Users who choose its members and admins and look after all of its jobs, all of them."""
    quota: ProjectQuota = ProjectQuota()
    """Limits; null takes one away."""

    def changed(self, project: Project) -> Project:
        """The project with the changes."""
        new: dict[str, Any] = {name: getattr(self, name) for name in ("share", "members", "admins")}
        new = {name: value for name, value in new.items() if name in self.model_fields_set}
        return project.model_copy(update={**new, "quota": project.quota.model_copy(update=self.quota.given)})

    @property
    def told(self) -> dict[str, Any]:
        """What the audit says of them."""
        return self.model_dump(mode="json", exclude_unset=True)


class NewProject(ProjectChanges):
    """A project to be."""

    model_config = ConfigDict(json_schema_extra={"example": {"name": "vision", "quota": {"cpus": 8, "jobs": 4}}})

    name: str = Field(pattern=PROJECT_NAME)
    """Letters, digits, dots, dashes and underscores, at most 63."""
