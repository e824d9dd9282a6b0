"""The section `checkpoint` of a spec."""

from typing import Annotated

from pydantic import Field

from trainers.section import Section
from trainers.spec.improvement import BY_METRIC, MetricChoice


class CheckpointSpec(Section):
    """When checkpoints are written, and from which one the run starts."""

    every_epochs: int = Field(default=1, ge=0)
    """Epochs between checkpoints; 0: none but the one of a clean stop."""

    keep_last: int = Field(default=2, ge=1)
    """How many checkpoints are kept."""

    keep_best: Annotated[MetricChoice | None, BY_METRIC] = None
    """By which metric the best model so far is kept, as `best.safetensors` beside the last one; none: only the last
    one."""

    resume: str | None = None
    """A checkpoint's folder to start from."""
