"""Nodes of one kind that an autoscaler may add to a cluster."""

from collections.abc import Sequence

from pydantic import Field

from trainers.elastic.placement import NodeCapacity, own
from trainers.errors import SpecRejected
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


def has_room(
    groups: Sequence[NodeGroup],
    workers: tuple[int, NodeCapacity],
    shards: tuple[int, NodeCapacity],
    have_own_nodes: bool,
) -> bool:
    """Whether workers and shards fit on all the nodes of these groups, each as a whole on one of them.

    workers, shards: How many there are, and what each takes. have_own_nodes: Whether the shards need nodes that the
    workers do without.
    """
    # Those with GPUs last: what needs none leaves them to others.
    nodes = [group.each for group in sorted(groups, key=lambda group: group.gpus) for _ in range(group.nodes)]
    (num_workers, worker), (num_shards, shard) = workers, shards
    if num_shards and have_own_nodes:
        try:
            own({str(number): node for number, node in enumerate(nodes)}, workers, shards)
        except SpecRejected:
            return False
        return True
    room = 0
    for node in nodes:
        here = node.times(worker, num_workers)
        num_workers -= here
        room += node.without(worker, here).times(shard, num_shards)
    return num_workers == 0 and room >= num_shards
