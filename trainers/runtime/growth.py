"""What a cluster may become where an autoscaler adds nodes as they are needed. Ray's own does not tell its limits, so
they are told here."""

from collections.abc import Iterator
from dataclasses import dataclass

from trainers.elastic.node_group import NodeGroup
from trainers.elastic.placement import NodeCapacity, own
from trainers.errors import SpecRejected
from trainers.runtime.cluster import Resources, needs
from trainers.spec import TrainSpec

REMEDY = "ask for fewer workers or for less a worker"


@dataclass(frozen=True)
class Growth:
    """The nodes that a cluster may have at most. None: it stays as it is."""

    groups: tuple[NodeGroup, ...] = ()

    @property
    def most(self) -> Resources:
        """All of them together."""
        cpus, gpus = (sum(group.nodes * getattr(group, name) for group in self.groups) for name in ("cpus", "gpus"))
        return Resources(cpus, gpus)

    def beyond(self, total: Resources) -> Resources:
        """What a cluster that has `total` now may still get."""
        return Resources(max(0.0, self.most.cpus - total.cpus), max(0.0, self.most.gpus - total.gpus))

    def refuses(self, spec: TrainSpec, total: Resources, what: str = "the job") -> str | None:
        """Why a cluster that has `total` now can never start a run; None if it can, today or once it has grown."""
        needed = needs(spec)
        if needed.fits(total) or self._has_room(spec):
            return None
        lacks = (
            f"{what} needs {needed.cpus:g} CPUs and {needed.gpus:g} GPUs at once, the cluster has {total.cpus:g} "
            f"and {total.gpus:g}"
        )
        if self.groups:
            largest = " and ".join(map(str, self.groups))
            return f"{lacks} and may grow to {largest}, where {_workers(spec)} no room; {REMEDY}"
        if total.cpus:
            return f"{lacks}; {REMEDY}"
        return f"{lacks}; if an autoscaler adds nodes to it, say in the settings which (`grows_to`)"

    def _has_room(self, spec: TrainSpec) -> bool:
        """Whether workers and shards fit on the nodes, each as a whole."""
        worker, shard = NodeCapacity(spec.workers.cpus, spec.workers.gpus), NodeCapacity(spec.ps.cpus)
        workers, shards = spec.workers.count, spec.ps.shards if spec.algorithm.traits.uses_parameter_server else 0
        nodes = dict(enumerate(self._nodes()))
        if shards and spec.ps.location == "own":
            try:
                own({str(number): node for number, node in nodes.items()}, (workers, worker), (shards, shard))
            except SpecRejected:
                return False
            return True
        for number, node in nodes.items():
            here = node.times(worker, workers)
            workers, nodes[number] = workers - here, node.without(worker, here)
        return workers == 0 and sum(node.times(shard, shards) for node in nodes.values()) >= shards

    def _nodes(self) -> Iterator[NodeCapacity]:
        """Each of them, those with GPUs last: what needs none leaves them to others."""
        for group in sorted(self.groups, key=lambda group: group.gpus):
            yield from [group.each] * group.nodes


def _workers(spec: TrainSpec) -> str:
    each = NodeCapacity(spec.workers.cpus, spec.workers.gpus)
    return f"{spec.workers.count} workers of {each} find" if spec.workers.count > 1 else f"a worker of {each} finds"
