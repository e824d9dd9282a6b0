"""Runs on the connected Ray: start one, find one again, clean up after one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trainers.errors import SpecRejected
from trainers.runtime import warm
from trainers.runtime.cluster import NAMESPACE
from trainers.runtime.coordinator import Coordinator
from trainers.runtime.crew import gone
from trainers.runtime.node_folder import sweep
from trainers.spec import TrainSpec

PREFLIGHT_LOOK_S = 0.5
OURS = ("trainers", "service", "api", "deploy")
"""Our packages: plain names, which a user's folder must not hide."""


COORDINATORS = 100
"""How often a coordinator that died comes back. What gets nowhere ends sooner, by what it does itself."""


class Run:
    """A run whose coordinator lives, or lived when this was made."""

    def __init__(self, job_id: str, coordinator: Any) -> None:
        self.job_id = job_id
        self.coordinator = coordinator

    def cancel(self) -> None:
        """Ask for a clean stop with a checkpoint; returns at once."""
        self.coordinator.cancel.remote()

    def scale(self, count: int) -> None:
        """Train with so many workers from soon on; returns once the run has taken note.

        Raises:
            SpecRejected: The run cannot have so many, or so few.
        """
        try:
            ray.get(self.coordinator.scale.remote(count))
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None

    def pause(self) -> None:
        """Ask for the same, to be taken up again: the log's last word is PAUSED; returns at once."""
        self.coordinator.pause.remote()

    def is_alive(self) -> bool:
        """False once Ray knows that the coordinator has died; one that is slow to answer lives."""
        try:
            ray.get(self.coordinator.ping.remote(), timeout=10)
        except ray.exceptions.ActorDiedError:
            return False
        except (ray.exceptions.ActorUnavailableError, ray.exceptions.GetTimeoutError):
            return True
        return True


def start_run(job_id: str, spec: TrainSpec, run_dir: Path, starts_again: bool = False) -> Run:
    """Start the coordinator of a run; its log begins in `run_dir` a moment later.

    It is detached and lives on this node, where `run_dir` is. `starts_again`: should it fail, it is started once more,
    so that its log does not end.

    Raises:
        SpecRejected: The user's code would hide Millrace's own packages.
    """
    here = ray.get_runtime_context().get_node_id()
    actor = ray.remote(Coordinator).options(
        name=f"{job_id}/coordinator",
        namespace=NAMESPACE,
        lifetime="detached",
        num_cpus=0,
        max_restarts=COORDINATORS,
        max_concurrency=1000,
        scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=True),
        runtime_env=warm.environment(None, threads=0),
    )
    arguments = (job_id, spec, str(run_dir.resolve()), runtime_environment(spec), None, starts_again)
    return Run(job_id, actor.remote(*arguments))


def find_run(job_id: str) -> Run | None:
    """The run whose coordinator lives under this id, if there is one."""
    try:
        return Run(job_id, ray.get_actor(f"{job_id}/coordinator", NAMESPACE))
    except ValueError:
        return None


def sweep_run(job_id: str, but: str | None = None) -> None:
    """Kill and remove whatever a run left behind: actors (except `<job_id>/<but>`), placement groups, mapped files."""
    gone(job_id, but)


def remove_files(job_id: str) -> None:
    """Remove what a run mapped on this node, and nothing else."""
    sweep(job_id)


def preflight(spec: TrainSpec, is_wanted: Callable[[], bool] = lambda: True) -> None:
    """Check on the cluster what needs the model and the data; takes seconds and no CPU that others are given.

    Args:
        is_wanted: Asked again and again: a process that Ray cannot start keeps nobody who does not wait any more.

    Raises:
        SpecRejected: With the field and the remedy.
    """
    task = ray.remote(_preflight).options(num_cpus=0, max_retries=0, runtime_env=runtime_environment(spec))
    checked = task.remote(spec)
    while not ray.wait([checked], timeout=PREFLIGHT_LOOK_S)[0]:
        if not is_wanted():
            ray.cancel(checked, force=True)
            return
    try:
        ray.get(checked)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None


def runtime_environment(spec: TrainSpec) -> dict[str, Any] | None:
    """Of the actors that train: a user's code, and a warm start where that is possible.

    Raises:
        SpecRejected: There is no such folder, or it would hide Millrace's own packages.
    """
    return warm.environment(_code_environment(spec), spec.workers.threads)


def _code_environment(spec: TrainSpec) -> dict[str, Any] | None:
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
