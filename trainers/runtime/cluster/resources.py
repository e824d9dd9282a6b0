"""What Ray hands out: how much a run takes, and how much there is."""

import os
from dataclasses import dataclass

from trainers.runtime.cluster.connection import ray_module
from trainers.spec import TrainSpec


@dataclass(frozen=True)
class Resources:
    """An amount of what Ray hands out."""

    cpus: float
    gpus: float

    def fits(self, into: "Resources") -> bool:
        """Whether this much can be taken from `into`."""
        return self.cpus <= into.cpus + 1e-9 and self.gpus <= into.gpus + 1e-9

    def __add__(self, other: "Resources") -> "Resources":
        return Resources(self.cpus + other.cpus, self.gpus + other.gpus)

    def __sub__(self, other: "Resources") -> "Resources":
        return self + other * -1

    def __mul__(self, count: float) -> "Resources":
        return Resources(self.cpus * count, self.gpus * count)


def needs(spec: TrainSpec) -> Resources:
    """What must be free for a run to start."""
    shards = spec.ps.shards * spec.ps.cpus if spec.algorithm.traits.uses_parameter_server else 0.0
    return Resources(spec.workers.count * spec.workers.cpus + shards, spec.workers.count * spec.workers.gpus)


def total_resources() -> Resources:
    """What the connected cluster has."""
    return _resources(ray_module().cluster_resources())


def available_resources() -> Resources:
    """What of it is free now."""
    return _resources(ray_module().available_resources())


def metrics_targets() -> list[str]:
    """Host and port where each living node of the connected cluster exports its metrics."""
    alive = [node for node in ray_module().nodes() if node["Alive"]]
    return [f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}" for node in alive]


def default_cpus() -> int:
    """Logical CPUs of a Ray of ours: at least two, so that two workers run on any machine."""
    return max(2, os.cpu_count() or 1)


def _resources(amounts: dict[str, float]) -> Resources:
    return Resources(cpus=amounts.get("CPU", 0.0), gpus=amounts.get("GPU", 0.0))
