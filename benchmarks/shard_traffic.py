"""`python -m benchmarks.shard_traffic`: bytes that workers send to the shards and to each other, by algorithm.

The transports count them; they do not depend on the machine or on what else it does.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from benchmarks.measurement import machine
from benchmarks.measurement.millrace_runs import running
from benchmarks.measurement.processes import MeasurementError, alone, exit_on_sigterm
from benchmarks.measurement.report import as_bullets, as_table, report_path
from benchmarks.measurement.workload import Workload, find_data
from trainers.events import Metrics
from trainers.spec import TrainSpec

WORKERS, MINIBATCHES = 4, 48
DOWNPOUR = "downpour"
ALGORITHMS: dict[str, dict[str, Any]] = {
    DOWNPOUR: {"name": "downpour"},
    "mixed, groups of 2": {"name": "mixed", "group": 2},
    "mixed, groups of 4": {"name": "mixed", "group": 4},
    "sync, through shards": {"name": "sync", "form": "parameter_server"},
}


@dataclass(frozen=True)
class Bytes:
    """Of one run, all workers together."""

    pushed: int
    fetched: int
    between_workers: int
    """Sent."""


def measure(work: Workload, algorithm: dict[str, Any]) -> Bytes:
    """One epoch of `MINIBATCHES` minibatches on a cluster of its own."""
    return alone(_drive, work, algorithm)


def _drive(work: Workload, algorithm: dict[str, Any]) -> Bytes:
    spec = TrainSpec.model_validate(
        {
            "workers": {"count": work.workers},
            "algorithm": algorithm,
            "model": "convnet",
            "data": work.data.model_copy(update={"limit": MINIBATCHES * work.minibatch}).model_dump(),
            "batch": work.minibatch,
            "evaluate": {"every_epochs": 0},
            "checkpoint": {"every_epochs": 0},
            "epochs": 1,
        }
    )
    with running(work, spec) as (_, follow):
        events = list(follow())
    if events[-1].data.get("state") != "SUCCEEDED":
        raise MeasurementError(f"the job ended as {events[-1].data}")
    told = [Metrics.model_validate(event.data) for event in events if event.type == "step"]
    pushed, fetched = sum(m.pushed_bytes for m in told), sum(m.fetched_bytes for m in told)
    return Bytes(pushed, fetched, sum(m.sent_bytes for m in told) - pushed)


HEADER = (
    "algorithm",
    "pushed, MB",
    "fetched, MB",
    "between workers, MB",
    "pushed to Downpour's",
    "fetched to Downpour's",
)


def markdown(work: Workload, found: dict[str, Bytes]) -> str:
    """The whole report."""
    base = found[DOWNPOUR]
    rows = [
        (
            name,
            *(f"{size / 1e6:,.1f}" for size in (b.pushed, b.fetched, b.between_workers)),
            f"{b.pushed / base.pushed:.3f}",
            f"{b.fetched / base.fetched:.3f}",
        )
        for name, b in found.items()
    ]
    settings = {
        "commit": machine.commit(),
        "work": f"one epoch of {MINIBATCHES} minibatches of {work.minibatch}, convnet on 28x28 (4.3 M parameters of "
        f"float32), {work.workers} workers, 2 shards, through Ray; all workers together",
        "ratio": "to Downpour",
        "expected": "mixed with groups of g: 1/g of Downpour's bytes to and from the shards (paper 3)",
    }
    return "\n\n".join(["# Bytes to the shards", as_bullets(settings), as_table(HEADER, rows)]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 when something could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shard_traffic", description=__doc__)
    parser.add_argument("--report", action="store_true", help="write the dated report into benchmarks/results")
    options = parser.parse_args(arguments)
    exit_on_sigterm()
    work, console = Workload(find_data(None), workers=WORKERS), Console()
    try:
        found = {name: measure(work, algorithm) for name, algorithm in ALGORITHMS.items()}
    except MeasurementError as error:
        console.print(str(error), style="red", markup=False)
        return 1
    text = markdown(work, found)
    console.print(text, markup=False)
    if options.report:
        path = report_path("shard-traffic")
        path.write_text(text)
        path.with_suffix(".json").write_text(json.dumps({n: asdict(b) for n, b in found.items()}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
