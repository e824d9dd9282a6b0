"""Runs that a test drives by hand: real journals, no Ray. What is left running here survives a manager, as Ray does."""

import gzip
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainers.cost.workload import LayerWork, Workload
from trainers.errors import MillraceError, TraceRefused
from trainers.events import Event, State
from trainers.runtime.cluster import Resources
from trainers.runtime.event_log import EventLog
from trainers.spec import TrainSpec


class FakeRun:
    """A coordinator that says what it is told to say."""

    trace_file = gzip.compress(b'{"traceEvents": []}')
    """What a trace of it holds."""
    no_trace = ""
    """Why there is none."""

    def __init__(self, job_id: str, spec: TrainSpec, run_dir: Path) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        self.job_id = job_id
        self.spec = spec
        self.run_dir = run_dir
        self.journal = EventLog(run_dir)
        self.alive = True
        self.cancels = 0
        self.pauses = 0
        self.size = spec.workers.count
        self.starts_again = False
        self.cancelled = threading.Event()

    def emit(self, event_type: Any, **data: Any) -> Event:
        return self.journal.append(event_type, data)

    def state(self, state: State, reason: str = "Told", message: str = "") -> None:
        self.emit("state", state=state, reason=reason, message=message)
        if state.is_terminal or state in (State.PAUSED, State.QUEUED):
            self.die()

    def step(self, epoch: float, loss: float = 0.5, workers: int = 2, **more: Any) -> Event:
        figures = {"wait_data_s": 0.0, "wait_communication_s": 0.0, "compute_s": 1.0, "staleness": {"0": 3}, **more}
        return self.emit(
            "step", step=int(epoch * 100), epoch=epoch, examples=int(epoch * 1000), examples_per_s=500.0, loss=loss,
            learning_rate=0.1, workers=workers, **figures,
        )  # fmt: skip

    def evaluation(self, epoch: float, accuracy: float) -> None:
        figures = {"test_loss": 0.2, "test_accuracy": accuracy, "seconds": 0.1}
        self.emit("evaluation", epoch=epoch, examples=int(epoch * 1000), **figures)

    def succeed(self, accuracy: float = 0.97, best: dict[str, object] | None = None) -> None:
        self.emit(
            "result", job_id=self.job_id, state="SUCCEEDED", epochs=self.spec.epochs, examples=5000,
            test_accuracy=accuracy, test_loss=0.2, train_loss=0.1, examples_per_s=500.0, wall_s=10.0,
            algorithm=self.spec.algorithm.name, workers=self.spec.workers.count, model_path="model.safetensors",
            message="", best=best,
        )  # fmt: skip
        self.state(State.SUCCEEDED, "Completed", "trained to the end")

    def die(self, torn: bytes = b"") -> None:
        """End without another word, or in the middle of one."""
        self.journal.file.write(torn)
        self.journal.close()
        self.alive = False

    def cancel(self) -> None:
        self.cancels += 1
        self.cancelled.set()

    def pause(self) -> None:
        self.pauses += 1

    def scale(self, count: int) -> None:
        self.spec.with_workers(count)
        names = [f"worker/{i}" for i in range(max(count, self.size))]
        self.emit("resize", workers=count, joined=names[self.size :], left=names[count:], examples=0)
        self.size = count

    def trace(self, steps: int, worker: int | None) -> int:
        if not self.alive:
            raise TraceRefused("the run trains nothing now; ask again while it is RUNNING")
        if (worker or 0) >= self.size:
            raise TraceRefused(f"there is no worker {worker}; those that train now: 0")
        name, data = f"0001-worker-{worker or 0}-{steps}.json.gz", {"worker": worker or 0, "asked": steps}
        first = self.emit("trace", **data, steps=0).seq
        if self.no_trace:
            self.emit("trace", **data, steps=0, why=self.no_trace)
            return first
        (self.run_dir / "traces").mkdir(exist_ok=True)
        (self.run_dir / "traces" / name).write_bytes(self.trace_file)
        self.emit("trace", **data, steps=steps, file=name, bytes=len(self.trace_file))
        return first

    def note(self, request: dict[str, Any]) -> None:
        if self.alive:
            self.emit("request", **request)

    def is_alive(self) -> bool:
        return self.alive


def nothing(run: FakeRun) -> None:
    """A run that waits to be told."""


def whole_run(run: FakeRun) -> None:
    """A run that is over as soon as it starts."""
    run.state(State.STARTING)
    run.state(State.RUNNING)
    for epoch in range(1, run.spec.epochs + 1):
        run.step(float(epoch))
        run.evaluation(epoch, 0.9 + epoch / 1000)
    run.succeed()


WORK = Workload(
    model="mlp",
    example="one image",
    layers=(LayerWork(name="a", parameters=100_000, forward_flops=200_000, backward_flops=400_000),),
    variables=(90_000, 10_000),
    num_states=1,
    activities=1000,
)


@dataclass
class FakeRuns:
    """A cluster of fake runs."""

    total: Resources = field(default_factory=lambda: Resources(cpus=4, gpus=0))
    script: Callable[[FakeRun], None] = nothing
    """What a run says by itself when it starts."""
    runs: dict[str, FakeRun] = field(default_factory=dict)
    swept: list[str] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    """Names of runs in the order of their start."""
    start_error: Exception | None = None
    preflight_error: MillraceError | None = None
    checked: list[TrainSpec] = field(default_factory=list)
    """What a preflight was asked of."""
    count_error: MillraceError | None = None
    counted: list[str] = field(default_factory=list)
    """Models, as they were counted."""
    is_open: bool = False
    may_start: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.may_start.set()

    def close(self) -> None:
        """Close the logs of all that still runs."""
        for run in self.runs.values():
            if run.alive:
                run.die()

    def start_run(self, job_id: str, spec: TrainSpec, run_dir: Path, starts_again: bool = False) -> FakeRun:
        assert type(spec) is TrainSpec, "the coordinator knows nothing of jobs"
        assert self.may_start.wait(120)
        if self.start_error is not None:
            raise self.start_error
        run = self.runs[job_id] = FakeRun(job_id, spec, run_dir)
        run.starts_again = starts_again
        self.order.append(job_id)
        self.script(run)
        return run

    def find_run(self, job_id: str) -> FakeRun | None:
        run = self.runs.get(job_id)
        return run if run is not None and run.alive else None

    def cleanup_run(self, job_id: str) -> None:
        self.swept.append(job_id)
        if (run := self.find_run(job_id)) is not None:
            run.die()

    def needs(self, spec: TrainSpec) -> Resources:
        return Resources(cpus=spec.workers.count * spec.workers.cpus, gpus=spec.workers.count * spec.workers.gpus)

    def preflight(self, spec: TrainSpec, is_wanted: Callable[[], bool]) -> None:
        self.checked.append(spec)
        if self.preflight_error is not None:
            raise self.preflight_error

    def count(self, spec: TrainSpec, is_wanted: Callable[[], bool]) -> Workload:
        assert is_wanted()
        self.counted.append(spec.model.name)
        if self.count_error is not None:
            raise self.count_error
        return WORK

    def metrics_targets(self) -> list[str]:
        return ["192.0.2.1:8080"]

    def cluster_is_open(self, address: str) -> bool:
        return self.is_open

    def total_resources(self) -> Resources:
        return self.total

    def available_resources(self) -> Resources:
        held = [(run.size, run.spec.workers) for run in self.runs.values() if run.alive]
        free = self.total - sum((Resources(w.cpus, w.gpus) * size for size, w in held), Resources(0, 0))
        return Resources(max(0.0, free.cpus), max(0.0, free.gpus))  # some may wait for nodes that are not there yet
