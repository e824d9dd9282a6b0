"""Nodes of one kind that an autoscaler may add to a cluster."""

from pydantic import Field

from trainers.elastic.placement import NodeCapacity
from trainers.section import Section

MOST_NODES = 10_000
"""A slip of the pen is not taken for a cluster."""


class NodeGroup(Section):
    """So many nodes, each of the same size."""

    nodes: int = Field(ge=1, le=MOST_NODES)
    """How many of them the cluster may have."""

    cpus: float = Field(ge=0)
    """Logical CPUs of each."""

    gpus: float = Field(default=0, ge=0)
    """GPUs of each."""

    @property
    def each(self) -> NodeCapacity:
        """What one of them has."""
        return NodeCapacity(self.cpus, self.gpus)

    def __str__(self) -> str:
        return f"{self.nodes} node{'s' * (self.nodes != 1)} of {self.each}"
