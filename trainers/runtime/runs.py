"""Runs on the connected Ray: start one, find one again, clean up after one."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trainers.cost.workload import Workload
from trainers.data.names import TORCHVISION
from trainers.data.reading import OPENING
from trainers.errors import SpecRejected, TraceRefused
from trainers.events import StopReason
from trainers.models.names import torchvision_names
from trainers.runtime import fork_server
from trainers.runtime.actor_handles import kill_run
from trainers.runtime.cluster import NAMESPACE, ensure_own_ray, kill_own_ray, own_ray_has_ended
from trainers.runtime.code_package import Objects, check_own, package_code, package_objects
from trainers.runtime.control.config import RunConfig
from trainers.runtime.coordinator import Coordinator
from trainers.runtime.gone import GONE
from trainers.runtime.node_folder import cleanup
from trainers.runtime.nodes import ask_on, process_of
from trainers.runtime.processes import kill_if_stopped, process_numbered
from trainers.runtime.ray_data.blocks import named_datasets
from trainers.spec import TrainSpec

T = TypeVar("T")

PREFLIGHT_LOOK_S = 0.5
ANSWERS_WITHIN_S = 10
"""A coordinator that does not is looked at, in case it is stopped."""
COORDINATORS = 100
"""How often a coordinator that died comes back. A run that gets nowhere gives up long before."""


class Run:
    """A run whose coordinator is alive, or was when this was made."""

    def __init__(self, job_id: str, coordinator: Any) -> None:
        self.job_id = job_id
        self.coordinator = coordinator

    def cancel(self, why: StopReason | None = None) -> None:
        """Ask for a clean stop with a checkpoint; returns at once. why: For the last line of its log."""
        self.coordinator.cancel.remote(why)

    def scale(self, count: int) -> None:
        """Train with so many workers from soon on; returns once the run has taken note.

        Raises:
            SpecRejected: The run cannot have so many, or so few.
        """
        try:
            ray.get(self.coordinator.scale.remote(count))
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None

    def trace(self, steps: int, worker: int | None = None) -> int:
        """Have a worker record its next steps, by the number in its name, or the first; the number of the event that
        says so.

        Raises:
            TraceRefused: Not these steps, not this worker, or not now.
        """
        try:
            event: int = ray.get(self.coordinator.trace.remote(steps, worker))
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.RayActorError:
            raise TraceRefused("the run trains nothing now; ask again while it is RUNNING") from None
        return event

    def pause(self) -> None:
        """Ask for the same, to be resumed later: the log ends with PAUSED; returns at once."""
        self.coordinator.pause.remote()

    def note(self, request: dict[str, Any]) -> None:
        """Write into the log what somebody has asked of the run; returns at once."""
        self.coordinator.note.remote(request)

    def is_alive(self) -> bool:
        """False once Ray knows that the coordinator has died; one that is slow to answer is alive. One that is stopped
        is killed, so that Ray starts another: before it has actors, nobody else would find it.

        Raises:
            ClusterUnavailable: Ray itself has ended, where it was this process's own.
        """
        ensure_own_ray()
        answer = self.coordinator.ping.remote()
        for _ in range(ANSWERS_WITHIN_S):
            try:
                ray.get(answer, timeout=1)
            except ray.exceptions.ActorUnavailableError:
                return True
            except GONE:
                return False
            except ray.exceptions.GetTimeoutError:
                ensure_own_ray()
            else:
                return True
        self._kill_if_stopped()
        return True

    def _kill_if_stopped(self) -> None:
        """Kill the coordinator's process if the system says that it is stopped."""
        if (where := process_of(self.coordinator)) is not None:
            node, pid = where
            if (process := ask_on(node, process_numbered, node, pid)) is not None:
                ask_on(node, kill_if_stopped, process)


def start_run(
    job_id: str, spec: TrainSpec, run_dir: Path, starts_again: bool = False, objects: Objects | None = None
) -> Run:
    """Start the coordinator of a run; its log begins in `run_dir` a moment later.

    It is detached and stays on this node, where `run_dir` is. `starts_again`: should the run fail, the caller starts it
    once more, so that its log does not end. `objects`: what `train()` was given, by the spec's names for it.

    Raises:
        SpecRejected: The folder with the user's code cannot be packed; why, and what to do.
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
        runtime_env=fork_server.environment(None, threads=0),
    )
    environment = runtime_environment(spec, objects)
    config = RunConfig(job_id, spec, run_dir.resolve(), environment, starts_again=starts_again)
    return Run(job_id, actor.remote(config))


def find_run(job_id: str) -> Run | None:
    """The run with this id, if its coordinator is alive."""
    try:
        return Run(job_id, ray.get_actor(f"{job_id}/coordinator", NAMESPACE))
    except ValueError:
        return None


def cleanup_run(job_id: str, but: str | None = None) -> None:
    """Kill and remove whatever a run left behind: actors (except `<job_id>/<but>`), placement groups, mapped files."""
    if own_ray_has_ended():
        kill_own_ray()
        remove_files(job_id)
    else:
        kill_run(job_id, but)


def remove_files(job_id: str) -> None:
    """Remove what a run mapped on this node, and nothing else."""
    cleanup(job_id)


def preflight(spec: TrainSpec, is_wanted: Callable[[], bool] = lambda: True) -> None:
    """Check on the cluster what needs the model and the data; takes seconds and no CPU that others are given.

    Args:
        is_wanted: Asked again and again. Once it says no, the check is cancelled: Ray may never start its process.

    Raises:
        SpecRejected: With the field and the remedy.
    """
    _once(_preflight, spec, is_wanted)


def count(spec: TrainSpec, is_wanted: Callable[[], bool] = lambda: True) -> Workload:
    """What a worker of this spec has to do, counted on the cluster; takes seconds and no CPU that others are given.

    Args:
        is_wanted: Asked again and again. Once it says no, the count is cancelled.

    Raises:
        SpecRejected: As in a run, for data, task or model; or it was not wanted any more.
    """
    found = _once(_count, spec, is_wanted)
    if found is None:
        raise SpecRejected("data: its first examples were not read in time to count the model; plan another")
    return found


def _once(task: Callable[[TrainSpec], T], spec: TrainSpec, is_wanted: Callable[[], bool]) -> T | None:
    """What a process of the cluster returns or raises that imports torch and the user's code, and ends with it; None
    if it was cancelled."""
    once = ray.remote(num_cpus=0, max_retries=0, max_calls=1, runtime_env=runtime_environment(spec))
    begun = once(task).remote(spec)
    while not ray.wait([begun], timeout=PREFLIGHT_LOOK_S)[0]:
        if not is_wanted():
            ray.cancel(begun, force=True)
            return None
    try:
        found: T = ray.get(begun)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    return found


def runtime_environment(spec: TrainSpec, objects: Objects | None = None) -> dict[str, Any] | None:
    """The runtime environment of the actors that train: a user's code, and a warm start where that is possible.

    Raises:
        SpecRejected: The folder with the user's code or an object cannot be packed, or the spec names one that nobody
            gave; why, and what to do.
    """
    check_own(spec, objects)
    code = package_code(Path(spec.code)) if spec.code is not None else None
    if objects:
        code = (code or {}) | {"py_modules": package_objects(objects)}
    return fork_server.environment(code, spec.workers.threads, _needs(spec))


def _needs(spec: TrainSpec) -> list[str]:
    """What to start with: torchvision where it makes the model, or reads or varies the images, and torch's tracer for
    an optimizer of torch's kind. A guess: who needs one of them otherwise imports it."""
    data, model = spec.data, spec.model
    varied = bool(data.varied_by or data.seen_by)
    vision = model.name in (*torchvision_names(), "resnet_cifar") or varied or data.name in TORCHVISION
    tracing = spec.optimizer.name == "torch"
    return [*([fork_server.VISION] if vision else []), *([fork_server.TRACING] if tracing else [])]


def _count(spec: TrainSpec) -> Workload:
    from trainers.cost.counting import count_workload
    from trainers.runtime.actors.base import use_code

    use_code(spec.code is not None)
    return count_workload(spec)


def _preflight(spec: TrainSpec) -> None:
    """Runs as a task, in a process that ends with it: what hangs in the user's data stays behind in a thread."""
    from trainers.runtime.actors.base import use_code
    from trainers.runtime.actors.callbacks import check as check_callbacks
    from trainers.training.setup import Setup
    from trainers.training.setup import preflight as check

    use_code(spec.code is not None)
    check_callbacks(spec.callbacks)
    if spec.data.kind == "ray":  # the run executes it, and its first worker finds the rest
        named_datasets(spec.data)
        return
    opened, checked = list[Setup](), Future[None]()

    def run() -> None:
        try:
            check(spec, opened.append)
            checked.set_result(None)
        except BaseException as error:
            checked.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    while not wait([checked], PREFLIGHT_LOOK_S).done:
        reading = opened[0].dataset.reading() if opened else OPENING.longest()
        if reading is not None and reading.seconds > spec.data.timeout_s:
            within = f"example {reading.example} of the dataset was not read within {spec.data.timeout_s:g} s"
            raise SpecRejected(f"data: {within}; set data.timeout_s to more if it takes so long")
    checked.result()
