"""Millrace through its whole path: embedded Ray, coordinator, workers, shards, events; measured from its event log."""

import logging
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.measurement import proc
from benchmarks.measurement.contender import Measurement
from benchmarks.measurement.processes import MeasurementError, alone
from benchmarks.measurement.workload import Workload
from trainers.events import Event, Metrics
from trainers.runtime.event_log import EventLogReader
from trainers.spec import TrainSpec

SETTLE_S = 2.0  # after Ray's start: its own helpers are still coming up, and the cluster is to be a running one
POLL_S = 0.05  # seldom enough not to cost what is measured
TAIL = 0.03  # share of the examples at the end that is not measured: asynchronous workers do not end together
TIMEOUT_S = 170.0
SENT_BYTES = "bytes a worker sends in a step"


@dataclass(frozen=True)
class Ours:
    """One of our algorithms with its settings."""

    algorithm: Literal["sync", "downpour", "hybrid", "parallel_sgd", "admm"]
    num_push: int = 1
    num_fetch: int = 1
    max_staleness: int | None = 1
    shards: int = 2
    scheme: Literal["a", "b", "c", "bc"] = "a"
    push: Literal["whole", "layerwise"] = "whole"
    threads: int = 1
    """Of each worker."""
    bind: Literal["auto", "none", "cores"] = "auto"

    def config(self) -> dict[str, Any]:
        """The section `algorithm` of the spec."""
        if self.algorithm == "sync":
            return {"name": "sync", "form": "all_reduce"}
        if self.algorithm == "hybrid":
            return {"name": "hybrid", "scheme": self.scheme}
        if self.algorithm == "parallel_sgd":
            return {"name": "parallel_sgd", "shuffle": "none"}
        if self.algorithm == "admm":
            return {"name": "admm", "form": "consensus"}
        settings = {"num_push": self.num_push, "num_fetch": self.num_fetch, "max_staleness": self.max_staleness}
        return {"name": "downpour", "push": self.push, **settings}


@dataclass(frozen=True)
class Window:
    """Which part of a job is measured, in examples."""

    warmup: int
    total: int
    minibatch: int


@dataclass(frozen=True)
class Sample:
    """CPU seconds of a job's processes when an event was seen."""

    seq: int
    cpu_s: float


def measure(work: Workload, ours: Ours, expected_per_s: float) -> Measurement:
    """A job of about `work.seconds` at the expected rate, on a cluster of its own."""
    return alone(_drive, work, ours, expected_per_s, timeout_s=TIMEOUT_S + 60)


def spec_of(work: Workload, ours: Ours, examples: int, report_every_s: float = 1.0) -> TrainSpec:
    """The job: as many examples as asked for, in one epoch where that many fit into one."""
    epochs = math.ceil(examples / work.longest_epoch)
    return TrainSpec.model_validate(
        {
            "workers": {"count": work.workers, "threads": ours.threads, "bind": ours.bind},
            "algorithm": ours.config(),
            "task": work.task,
            "model": {"name": work.model, "kwargs": dict(work.sizes)},
            "data": work.data.model_copy(update={"limit": math.ceil(examples / epochs)}).model_dump(),
            "batch": work.minibatch,
            "optimizer": {"name": "momentum", "lr": work.lr, "momentum": work.momentum},
            "ps": {"shards": ours.shards},
            "evaluate": {"every_epochs": 0},
            "checkpoint": {"every_epochs": 0},
            "epochs": epochs,
            "seed": work.seed,
            "report_every_s": report_every_s,
        }
    )


def analyse(events: Sequence[Event], samples: Sequence[Sample], submitted: float, window: Window) -> Measurement:
    """Rates between the first report after the warm-up and the last before the end of the job.

    Raises:
        MeasurementError: The job did not succeed, or was too short for two reports.
    """
    if events[-1].data.get("state") != "SUCCEEDED":
        raise MeasurementError(f"the job ended as {events[-1].data}")
    reports = [(event, Metrics.model_validate(event.data)) for event in events if event.type == "step"]
    within = [(event, m) for event, m in reports if window.warmup <= m.examples <= window.total * (1 - TAIL)]
    if len(within) < 2:
        raise MeasurementError(f"only {len(within)} reports lie in the measured part; measure for longer")
    (first, start), (last, stop) = within[0], within[-1]
    minibatches = (stop.examples - start.examples) / window.minibatch
    cpu = {sample.seq: sample.cpu_s for sample in samples}
    parts = {
        "data": sum(m.wait_data_s for _, m in within[1:]),
        "communication": sum(m.wait_communication_s for _, m in within[1:]),
        "computing": sum(m.compute_s for _, m in within[1:]),
    }
    details = {f"share of time: {name}": seconds / sum(parts.values()) for name, seconds in parts.items()}
    details["submit to first step, s"] = reports[0][0].time - submitted
    details[SENT_BYTES] = sum(m.sent_bytes for _, m in within[1:]) / minibatches
    if stop.staleness:
        applied = sum(stop.staleness.values())
        details["mean staleness"] = sum(s * n for s, n in stop.staleness.items()) / applied
    rate = (stop.examples - start.examples) / (last.time - first.time)
    return Measurement(rate, (cpu[last.seq] - cpu[first.seq]) / minibatches, details)


@contextmanager
def running(
    work: Workload, spec: TrainSpec, before: Callable[[], None] = lambda: None
) -> Iterator[tuple[float, Callable[[], Iterator[Event]]]]:
    """A job on an embedded Ray: when it was submitted, and its events as they come, up to the last. `before` is called
    once Ray has come up."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    logging.getLogger("ray").setLevel(logging.ERROR)
    import trainers

    folder = Path(tempfile.mkdtemp(prefix="millrace-bench-"))
    try:
        with trainers.embedded(num_cpus=work.workers + 1):
            time.sleep(SETTLE_S)
            before()
            run_dir = folder / "run"
            run_dir.mkdir()
            submitted = time.time()
            run = trainers.start_run("bench", spec, run_dir)
            yield submitted, lambda: follow(run_dir)
            del run
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def job_pids(event: Event) -> list[int]:
    """Process ids of all that works on a job, in its `actors` event: workers, shards, coordinator."""
    return worker_pids(event) + [int(a["pid"]) for a in (*event.data["shards"], event.data["coordinator"])]


def worker_pids(event: Event) -> list[int]:
    """Process ids of the workers in an `actors` event."""
    return [int(worker["pid"]) for worker in event.data["workers"]]


def _drive(work: Workload, ours: Ours, expected_per_s: float) -> Measurement:
    warmup = work.warmup_steps * work.minibatch * work.workers
    measured = work.steps * work.minibatch * work.workers if work.steps else work.seconds * expected_per_s
    total = math.ceil((warmup + measured) / (1 - TAIL))
    events, samples, pids = [], [], []
    spec = spec_of(work, ours, total)
    with running(work, spec) as (submitted, follow):
        for event in follow():
            events.append(event)
            if event.type == "actors":
                pids = job_pids(event)
            if event.type == "step":
                samples.append(Sample(event.seq, sum(map(proc.cpu_seconds, pids))))
    return analyse(events, samples, submitted, Window(warmup, total, work.minibatch))


def follow(run_dir: Path, within_s: float = TIMEOUT_S) -> Iterator[Event]:
    """The events of a run as they come, up to the last. Raises MeasurementError if that takes too long."""
    reader, deadline = EventLogReader(run_dir), time.monotonic() + within_s
    while time.monotonic() < deadline:
        for event in reader.read():
            yield event
            if event.is_terminal:
                return
        time.sleep(POLL_S)
    raise MeasurementError(f"the job did not end within {within_s:.0f} s")
