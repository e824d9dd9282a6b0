"""The section `ps` of a spec."""

from typing import Literal

from pydantic import Field

from trainers.section import Section


class ParameterServerSpec(Section):
    """The shards that hold the parameters, for the algorithms that have them."""

    shards: int = Field(default=2, ge=1, le=1024)
    """S: shards (Ray actors), each with a slice of the parameters."""

    placement: Literal["balanced", "round_robin"] = "balanced"
    """`balanced`: equal bytes a shard, cutting through variables; `round_robin`: whole variables in turn, as in
    TensorFlow (paper 3, section IV.C)."""

    location: Literal["with_workers", "own"] = "with_workers"
    """`with_workers`: on the workers' nodes in turn, but not on the one where checkpoints are written, if there are
    others; `own`: on nodes without workers (paper 3, section IV.C)."""

    cpus: float = Field(default=0, ge=0, le=1024)
    """Logical CPUs that Ray reserves for each shard."""

    replicas: Literal[1, 2] = 2
    """Copies of what a shard holds. 2: beside the process, memory of its node that survives it, with a journal: a shard
    whose process dies comes back without losing an acknowledged update; and over process groups a second process on
    another node, which serves when the shard's node is lost. 1: where every push is an update of its own it comes back
    from its last snapshot and the pushes that workers still hold, and the run says how many updates were lost; a
    synchronous run goes back to its last checkpoint, and so does any that loses the node."""
