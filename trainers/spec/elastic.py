"""The section `elastic` of a spec."""

from typing import Literal

from pydantic import Field

from trainers.section import Section


class ElasticSpec(Section):
    """How the run adapts to the resources of the cluster."""

    mode: Literal["fixed_batch", "scale_batch"] = "fixed_batch"
    """`fixed_batch`: the number of virtual workers is constant, and so the result does not depend on the workers.
    `scale_batch`: each worker keeps its number of virtual workers, so the batch follows the number of workers, and
    learning rate and weight decay follow the batch by `scaling`. With the algorithm `sync` in the form `all_reduce`."""

    ramp_epochs: float = Field(default=1.0, ge=0, le=1000)
    """`scale_batch`: epochs over which the learning rate rises when the batch has grown. When it has shrunk, the rate
    drops at once."""

    follow_cluster: bool = False
    """Train with as many workers as the cluster has room for, from `workers.min` to `workers.max`. Otherwise the run
    has `workers.count` workers whenever the cluster has room for them."""
