"""What a cluster may become where an autoscaler adds nodes as they are needed. Ray's own does not tell its limits, so
they are told here."""

from dataclasses import dataclass

from trainers import NodeCapacity, NodeGroup, Resources, TrainSpec, has_room, needs

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
        num_shards = spec.ps.shards if spec.algorithm.traits.uses_parameter_server else 0
        workers, shards = (spec.workers.count, _worker(spec)), (num_shards, NodeCapacity(spec.ps.cpus))
        return has_room(self.groups, workers, shards, have_own_nodes=spec.ps.location == "own")


def _worker(spec: TrainSpec) -> NodeCapacity:
    return NodeCapacity(spec.workers.cpus, spec.workers.gpus)


def _workers(spec: TrainSpec) -> str:
    each = _worker(spec)
    return f"{spec.workers.count} workers of {each} find" if spec.workers.count > 1 else f"a worker of {each} finds"
