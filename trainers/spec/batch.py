"""The section `batch` of a spec."""

from pydantic import Field

from trainers.section import Section


class BatchSpec(Section):
    """How many examples a step trains."""

    per_worker: int = Field(default=32, ge=1, le=1_000_000)
    """n: examples in the minibatch of one (virtual) worker."""

    base: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """The batch, in examples, to which `optimizer.lr` and `weight_decay` belong; `scaling` takes them from there to
    the batch of this run. null: they are taken as they are."""
