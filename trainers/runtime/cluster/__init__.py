"""The Ray that runs happen on: one of this process's own, a head that outlives it, or one that exists."""

from trainers.runtime.cluster.connection import (
    NAMESPACE,
    RAY_COMMAND,
    RAY_ENVIRONMENT,
    ClusterInfo,
    attach,
    cluster_is_open,
    detach,
)
from trainers.runtime.cluster.head import head_is_alive, start_head, stop_head
from trainers.runtime.cluster.own_ray import embedded, ensure_own_ray, kill_own_ray, own_ray_has_ended
from trainers.runtime.cluster.resources import (
    Resources,
    available_resources,
    default_cpus,
    metrics_targets,
    needs,
    total_resources,
)

__all__ = [
    "NAMESPACE", "RAY_COMMAND", "RAY_ENVIRONMENT", "ClusterInfo", "Resources", "attach", "available_resources",
    "cluster_is_open", "default_cpus", "detach", "embedded", "ensure_own_ray", "head_is_alive", "kill_own_ray",
    "metrics_targets", "needs", "own_ray_has_ended", "start_head", "stop_head", "total_resources",
]  # fmt: skip
