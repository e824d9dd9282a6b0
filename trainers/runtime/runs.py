"""Runs on the connected Ray: start one, find one again, clean up after one."""

from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trainers.errors import SpecRejected
from trainers.runtime.cluster import NAMESPACE, Resources
from trainers.runtime.coordinator import Coordinator
from trainers.runtime.crew import gone
from trainers.spec import TrainSpec

OURS = ("trainers", "service", "api", "deploy")
"""Our packages: plain names, which a user's folder must not hide."""


class Run:
    """A run whose coordinator lives, or lived when this was made."""

    def __init__(self, job_id: str, coordinator: Any) -> None:
        self.job_id = job_id
        self.coordinator = coordinator

    def cancel(self) -> None:
        """Ask for a clean stop with a checkpoint; returns at once."""
        self.coordinator.cancel.remote()

    def is_alive(self) -> bool:
        """False once Ray knows that the coordinator has died; one that is slow to answer lives."""
        try:
            ray.get(self.coordinator.ping.remote(), timeout=10)
        except ray.exceptions.ActorDiedError:
            return False
        except (ray.exceptions.ActorUnavailableError, ray.exceptions.GetTimeoutError):
            return True
        return True


def start_run(job_id: str, spec: TrainSpec, run_dir: Path) -> Run:
    """Start the coordinator of a run; its log begins in `run_dir` a moment later.

    It is detached and lives on this node, where `run_dir` is.

    Raises:
        SpecRejected: The user's code would hide Millrace's own packages.
    """
    here = ray.get_runtime_context().get_node_id()
    actor = ray.remote(Coordinator).options(
        name=f"{job_id}/coordinator",
        namespace=NAMESPACE,
        lifetime="detached",
        num_cpus=0,
        max_restarts=0,
        max_concurrency=1000,
        scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=True),
    )
    coordinator = actor.remote(job_id, spec, str(run_dir.resolve()), code_environment(spec))
    coordinator.run.remote()
    return Run(job_id, coordinator)


def find_run(job_id: str) -> Run | None:
    """The run whose coordinator lives under this id, if there is one."""
    try:
        return Run(job_id, ray.get_actor(f"{job_id}/coordinator", NAMESPACE))
    except ValueError:
        return None


def sweep_run(job_id: str) -> None:
    """Kill and remove whatever a run left behind: actors, placement groups, mapped files."""
    gone(job_id)


def needs(spec: TrainSpec) -> Resources:
    """What must be free for a run to start."""
    shards = spec.ps.shards * spec.ps.cpus if spec.algorithm.uses_parameter_server else 0.0
    return Resources(spec.workers.count * spec.workers.cpus + shards, spec.workers.count * spec.workers.gpus)


def preflight(spec: TrainSpec) -> None:
    """Check on the cluster what needs the model and the data; takes seconds and no CPU that others are given.

    Raises:
        SpecRejected: With the field and the remedy.
    """
    task = ray.remote(_preflight).options(num_cpus=0, max_retries=0, runtime_env=code_environment(spec))
    try:
        ray.get(task.remote(spec))
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None


def code_environment(spec: TrainSpec) -> dict[str, Any] | None:
    """A user's folder as Ray's working directory, packed once and fetched by every node.

    Raises:
        SpecRejected: There is no such folder, or it would hide Millrace's own packages.
    """
    if spec.code is None:
        return None
    folder = Path(spec.code)
    if not folder.is_dir():
        raise SpecRejected(f"code: there is no folder {folder}")
    for name in OURS:
        if (folder / name).exists() or (folder / f"{name}.py").exists():
            raise SpecRejected(f"code: {folder / name} would hide Millrace's own package `{name}`; rename it")
    from ray._private.runtime_env.working_dir import upload_working_dir_if_needed

    environment: dict[str, Any] = upload_working_dir_if_needed({"working_dir": str(folder)}, include_gitignore=True)
    return environment


def _preflight(spec: TrainSpec) -> None:
    from trainers.runtime.member import use_code
    from trainers.setup import preflight as check

    use_code(spec.code is not None)
    check(spec)
