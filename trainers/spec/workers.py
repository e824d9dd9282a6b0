"""The section `workers` of a spec."""

from pydantic import Field, ValidationInfo, field_validator

from trainers.elastic.binding import BindName
from trainers.section import Section


class WorkersSpec(Section):
    """The processes that train, and the virtual workers on which the result depends."""

    count: int = Field(default=2, ge=1, le=4096)
    """Physical workers (Ray actors)."""

    min: int = Field(default=1, ge=1, le=4096)
    """The smallest number of workers with which the run trains; with fewer it waits for resources."""

    max: int = Field(default=0, ge=0, le=4096)
    """The most that the run may be scaled to; 0: as many as a synchronous algorithm has virtual workers, else twice
    `count`."""

    virtual: int = Field(default=0, ge=0, le=65536)
    """Virtual workers V: the minibatch of a synchronous step is V times `batch.per_worker`, whatever `count` is.
    0: as many as `count`."""

    cpus: float = Field(default=1, ge=0, le=1024)
    """Logical CPUs that Ray reserves for each worker."""

    gpus: float = Field(default=0, ge=0, le=64)
    """GPUs that Ray reserves for each worker."""

    threads: int = Field(default=1, ge=1, le=256)
    """Threads of torch in each worker. A run gives the same bits only with the same number."""

    bind: BindName = "auto"
    """On which cores the training threads run. `auto`: where a machine has several NUMA nodes, each worker keeps to one
    of them, in turn; elsewhere on any. `none`: on any. `cores`: each worker on as many cores of its own as it has
    threads, which is meant for a machine with one run."""

    @field_validator("virtual")
    @classmethod
    def _holds_count(cls, virtual: int, info: ValidationInfo) -> int:
        count = info.data.get("count", 1)
        if virtual and virtual < count:
            raise ValueError(f"{count} workers cannot share {virtual} virtual workers; use at least {count}, or 0")
        return virtual

    @field_validator("min")
    @classmethod
    def _begins_with_enough(cls, least: int, info: ValidationInfo) -> int:
        count = info.data.get("count", least)
        if least > count:
            raise ValueError(f"the run begins with {count} workers; use at most that")
        return least

    @field_validator("max")
    @classmethod
    def _begins_with_few(cls, most: int, info: ValidationInfo) -> int:
        count = info.data.get("count", 1)
        if most and most < count:
            raise ValueError(f"the run begins with {count} workers; use at least that, or 0")
        return most

    @property
    def num_virtual(self) -> int:
        """V with its default filled in."""
        return self.virtual or self.count
