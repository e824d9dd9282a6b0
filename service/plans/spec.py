"""What a plan is asked for over REST: the job, the machines, the candidates."""

import re
from typing import Any

from pydantic import ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from service.errors import SpecInvalid
from service.plans.target import read_target
from service.spec import JobSpec, checked
from trainers import (
    Cluster,
    FieldError,
    PlanRequest,
    SpecRejected,
    StepProfile,
    field_errors,
    read_cluster,
    shipped_clusters,
    worker_counts,
)

OWN = frozenset({"search", "workers", "cluster", "profile", "price", "links", "nodes"})
FIELD = re.compile(r"[a-z_]+(?:\.[A-Za-z0-9_]+)*")
POINTER = re.compile(r"(/\S*): (.*)", re.DOTALL)


class DescribedCluster(Cluster):
    """Machines that one need not have: workers fill the switches in the order in which these are written."""


class PlanSpec(PlanRequest):
    """A job, and what to plan it for."""

    model_config = ConfigDict(extra="forbid")

    spec: JobSpec
    """As it would be submitted."""
    workers: tuple[int, ...] | None = Field(default=None, min_length=1, max_length=4096)
    """Candidates, or a text: `1..64`, `1,2,4,8`. null: as many as the spec, the cluster or the machine's cores allow,
    up to 64."""
    nodes: tuple[int, ...] | None = Field(default=None, min_length=1, max_length=4096)
    """Instead of numbers of workers: so many nodes, or switches, of the cluster or the links, each with as many workers
    as it has devices; or a text: `1..16`."""
    cluster: DescribedCluster | None = None
    """Where it would run, or the name of a cluster that is described already; null: on the machine of the profile."""
    profile: StepProfile | None = None
    """How long a minibatch takes, as `millrace plan --profile` keeps it; null: as the cluster's device says, and
    without a cluster as a profile says that the service keeps."""

    target: str | None = Field(default=None, max_length=200)
    """What shall be reached, such as `test_accuracy=0.95`, or `accuracy=0.95` on the set by which runs are judged.
    Earlier runs of this job tell how long that takes."""

    noise_scale: bool = False
    """Whether, where no run of this job tells of the target, runs with other batches do, by the gradient noise scale
    that they have measured (`algorithm.noise_scale`)."""

    @field_validator("target")
    @classmethod
    def _is_one(cls, written: str | None, info: ValidationInfo) -> str | None:
        if written is not None and "spec" in info.data:
            read_target(written, info.data["spec"])
        return written

    @field_validator("workers", "nodes", mode="before")
    @classmethod
    def _counted(cls, written: Any, info: ValidationInfo) -> Any:
        if not isinstance(written, str):
            return written
        try:
            return worker_counts(written, str(info.field_name))
        except SpecRejected as error:
            raise ValueError(_after(str(error))) from None

    @field_validator("workers", "nodes")
    @classmethod
    def _are_possible(cls, counts: tuple[int, ...] | None, info: ValidationInfo) -> tuple[int, ...] | None:
        for count in counts or ():
            if not 1 <= count <= 4096:
                raise ValueError(f"{count} is no number of {info.field_name}; name some from 1 to 4096")
        return counts

    @field_validator("cluster", mode="before")
    @classmethod
    def _named(cls, written: Any) -> Any:
        if not isinstance(written, str):
            return written
        if written not in (names := shipped_clusters()):
            raise ValueError(f"no cluster has this name; describe one, or name one of {', '.join(names)}")
        return read_cluster(written).model_dump()

    @property
    def request(self) -> PlanRequest:
        """The same without the job."""
        return PlanRequest(**{name: getattr(self, name) for name in PlanRequest.model_fields})


def parse_plan(data: Any) -> PlanSpec:
    """What is asked for, from plain data. Raises SpecInvalid with a pointer for each field that is wrong."""
    if not isinstance(data, dict):
        raise SpecInvalid([FieldError(pointer="", message="a plan is asked for by a mapping of fields, such as spec")])
    job = data.get("spec", {})
    if not isinstance(job, dict):
        raise SpecInvalid([FieldError(pointer="/spec", message="the spec of a job is a mapping of fields")])
    try:
        spec = checked(job, JobSpec)
    except SpecInvalid as error:
        found = [FieldError(pointer=f"/spec{one.pointer}", message=one.message) for one in error.errors]
        raise SpecInvalid(found) from None
    try:
        return PlanSpec.model_validate({**data, "spec": spec})
    except ValidationError as error:
        raise SpecInvalid(field_errors(error, PlanSpec)) from None


def as_field_error(rejected: SpecRejected) -> SpecInvalid:
    """`workers: too many` and `algorithm.backprop: unknown`, as errors of the fields of a PlanSpec."""
    message = str(rejected)
    name, colon, rest = message.partition(": ")
    if not colon or not FIELD.fullmatch(name):
        return SpecInvalid([FieldError(pointer="/spec", message=message)])
    if name not in OWN:
        return SpecInvalid([FieldError(pointer="/spec/" + name.replace(".", "/"), message=rest)])
    match = POINTER.fullmatch(rest)
    return SpecInvalid([FieldError(pointer=f"/{name}{match[1] if match else ''}", message=match[2] if match else rest)])


def _after(message: str) -> str:
    return message.partition(": ")[2]
