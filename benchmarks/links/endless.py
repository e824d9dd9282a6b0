"""A run on a Ray that is there already, watched for a while and ended."""

import gzip
import json
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trainers
from benchmarks.measurement.millrace_runs import follow
from benchmarks.measurement.processes import MeasurementError
from benchmarks.measurement.workload import Workload
from trainers.events import Event, Metrics
from trainers.spec import TrainSpec

RUN_S = 600.0
"""How long a run may take, also where others compute on the machine."""


@dataclass(frozen=True)
class Rate:
    """One run in one round."""

    examples_per_s: float
    waiting: float
    """Share of the workers' time in which they waited for communication; 0 where nobody counted."""
    sent_bytes: float = 0.0
    """That workers sent for each example."""


def analyse(reports: Sequence[tuple[float, Metrics]]) -> Rate:
    """From the reports of the measured part, each with its time in seconds; the first is of what came before.

    Raises:
        MeasurementError: Nothing was trained in it.
    """
    examples, found = reports[-1][1].examples - reports[0][1].examples, [metrics for _, metrics in reports[1:]]
    if not examples:
        raise MeasurementError("nothing was trained while it was measured")
    waited = sum(metrics.wait_communication_s for metrics in found)
    busy = sum(metrics.compute_s + metrics.wait_data_s for metrics in found)
    return Rate(rate_of(reports[1:]), waited / (waited + busy), sum(metrics.sent_bytes for metrics in found) / examples)


def rate_of(reports: Sequence[tuple[float, Metrics]]) -> float:
    """Examples a second: the mean of what the workers say, whose reports have whole steps and the time of these. The
    examples between two events jump by whole reports."""
    return statistics.fmean(metrics.examples_per_s for _, metrics in reports)


def measured(events: Iterator[Event], work: Workload) -> Iterator[tuple[float, Metrics]]:
    """The reports between the warm-up and the end of the measurement."""
    begun = None
    for event in events:
        if event.is_terminal:
            raise MeasurementError(f"the job ended as {event.data}")
        if event.type != "step":
            continue
        metrics = Metrics.model_validate(event.data)
        if begun is None and metrics.step >= work.warmup_steps:
            begun = event.time
        if begun is not None:
            yield event.time, metrics
            if event.time > begun + work.seconds:
                return


def run(work: Workload, spec: TrainSpec, name: str) -> Rate:
    """What `measured` sees of it. name: of the run."""
    with started(spec, name) as (_, folder):
        return analyse(list(measured(follow(folder, RUN_S), work)))


def trace(work: Workload, spec: TrainSpec, name: str, steps: int) -> list[dict[str, Any]]:
    """The events of the trace of so many steps of its first worker, after the warm-up.

    Raises:
        MeasurementError: There is none; with the reason.
    """
    with started(spec, name) as (run, folder):
        events = follow(folder, RUN_S)
        next(measured(events, work))
        run.trace(steps)
        for event in events:
            if event.type == "trace" and ("file" in event.data or "why" in event.data):
                break
        if "file" not in event.data:
            raise MeasurementError(f"no trace: {event.data}")
        raw = json.loads(gzip.decompress((folder / "traces" / event.data["file"]).read_bytes()))
    found: list[dict[str, Any]] = raw["traceEvents"]
    return found


@contextmanager
def started(spec: TrainSpec, name: str) -> Iterator[tuple[Any, Path]]:
    """A run and its folder; it ends with this."""
    folder = Path(tempfile.mkdtemp(prefix="millrace-bench-"))
    try:
        started = trainers.start_run(name, spec, folder)
        try:
            yield started, folder
        finally:
            trainers.cleanup_run(started.job_id)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
