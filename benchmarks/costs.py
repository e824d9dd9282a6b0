"""`python -m benchmarks.costs`: what it costs a Downpour run that workers and shards may die.

Replication: the rate with a second copy of what the shards hold, to that without. Heartbeats, ledger and audit: the CPU
seconds of all the run's processes a minibatch, to those of a run whose coordinator asks nobody how they are, hands out
leases by counting, and proves nothing. Runs alternate on one Ray.
"""

import argparse
import json
import logging
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.measurement import machine, proc
from benchmarks.measurement.careless import Careless
from benchmarks.measurement.contender import Measurement
from benchmarks.measurement.millrace_runs import (
    SETTLE_S,
    TAIL,
    Ours,
    Sample,
    Window,
    analyse,
    follow,
    job_pids,
    spec_of,
)
from benchmarks.measurement.processes import MeasurementError, alone, exit_on_sigterm
from benchmarks.measurement.report import as_bullets, as_table, report_path
from benchmarks.measurement.statistics import Spread, Target, paired
from benchmarks.measurement.workload import Workload, find_data
from trainers.runtime.coordinator import Coordinator

EXPECTED_PER_S = 1500.0
REPLICATION = Target("rate with a second copy to that with none", 0.75)
BOOKKEEPING = Target("CPU a minibatch with heartbeats, ledger and audit to that without", 1.01, "at most")
OURS = Ours("downpour")
REPORT_S = 0.25


@dataclass(frozen=True)
class Round:
    """One after the other."""

    copied: Measurement
    """`ps.replicas: 2`, as by default."""
    alone: Measurement
    """`ps.replicas: 1`."""
    careless: Measurement


def _drive(work: Workload, rounds: int, turn: int) -> list[Round]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    logging.getLogger("ray").setLevel(logging.ERROR)
    import trainers

    found = []
    with trainers.embedded(num_cpus=work.workers + 1):
        time.sleep(SETTLE_S)
        for number in range(rounds):
            runs = {
                "copied": lambda: _measure(work, 2, Coordinator),
                "alone": lambda: _measure(work, 1, Coordinator),
                "careless": lambda: _measure(work, 2, Careless),
            }
            names = list(runs)
            shift = (turn + number) % len(names)  # each is first as often as the others
            measured = {name: runs[name]() for name in [*names[shift:], *names[:shift]]}
            found.append(Round(**measured))
    return found


def _measure(work: Workload, replicas: int, coordinator: type[Coordinator]) -> Measurement:
    """One run on the connected Ray."""
    import trainers
    from trainers.runtime import runs

    warmup = work.warmup_steps * work.minibatch * work.workers
    total = math.ceil((warmup + work.seconds * EXPECTED_PER_S) / (1 - TAIL))
    spec = spec_of(work, OURS, total, REPORT_S)
    spec = spec.model_copy(update={"ps": spec.ps.model_copy(update={"replicas": replicas})})
    folder = Path(tempfile.mkdtemp(prefix="millrace-bench-"))
    events, samples, pids, usual = [], [], [], runs.Coordinator
    runs.Coordinator = coordinator  # type: ignore[misc]
    try:
        begun = time.time()
        trainers.start_run(folder.name, spec, folder)
        for event in follow(folder):
            events.append(event)
            if event.type == "actors":
                pids = job_pids(event)
            if event.type == "step":
                samples.append(Sample(event.seq, sum(map(proc.cpu_seconds, pids))))
        return analyse(events, samples, begun, Window(warmup, total, work.minibatch))
    finally:
        runs.Coordinator = usual  # type: ignore[misc]
        shutil.rmtree(folder, ignore_errors=True)


def markdown(work: Workload, rounds: Sequence[Round], load: str) -> str:
    """The whole report."""
    rows = []
    for title, name in [("second copy (default)", "copied"), ("no copy", "alone"), ("careless", "careless")]:
        each: list[Measurement] = [getattr(r, name) for r in rounds]
        rate, cpu = Spread(tuple(m.examples_per_s for m in each)), Spread(tuple(1000 * m.cpu_s_per_step for m in each))
        rows.append((title, f"{rate.median:,.0f}", _range(rate, ",.0f"), f"{cpu.median:.2f}", _range(cpu, ".2f")))
    replication = paired([r.copied.examples_per_s for r in rounds], [r.alone.examples_per_s for r in rounds])
    bookkeeping = paired([r.copied.cpu_s_per_step for r in rounds], [r.careless.cpu_s_per_step for r in rounds])
    verdicts = [
        (target.name, f"{target.bound:g}", f"{spread.median:.3f}", _range(spread, ".3f"),
         "{:.3f}..{:.3f}".format(*spread.quartiles), target.verdict(spread))
        for target, spread in ((REPLICATION, replication), (BOOKKEEPING, bookkeeping))
    ]  # fmt: skip
    settings = {
        **machine.describe(),
        "load average before": load,
        "work": f"convnet, {work.workers} workers of one thread, minibatch {work.minibatch}, 2 shards, downpour",
        "rounds": f"{len(rounds)}, each of three runs of about {work.seconds:g} s that take turns in being first",
    }
    return "\n\n".join([
        "# What it costs that workers and shards may die",
        as_bullets(settings),
        as_table(("run", "examples/s", "min..max", "CPU ms a minibatch", "min..max"), rows),
        "## Against the contract, ratios within a round",
        as_table(("what", "bound", "median", "min..max", "quartiles", "verdict"), verdicts),
    ]) + "\n"  # fmt: skip


def _range(spread: Spread, form: str) -> str:
    return f"{spread.low:{form}}..{spread.high:{form}}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 when something could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.costs", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="how often all are measured (default 20)")
    parser.add_argument("--seconds", type=float, default=6.0, help="about how long each is (default 6)")
    parser.add_argument("--data-root", type=Path, help="a folder with MNIST in torchvision's layout")
    parser.add_argument("--report", action="store_true", help="write the dated report into benchmarks/results")
    options = parser.parse_args(arguments)
    exit_on_sigterm()
    work = Workload(find_data(options.data_root), workers=2, seconds=options.seconds)
    console, load, rounds = Console(), machine.load(), []
    try:
        for turn in range(options.rounds):
            if turn % 5 == 0:
                console.print(f"round {turn + 1} of {options.rounds}", markup=False)
                count = min(5, options.rounds - turn)
                rounds += alone(_drive, work, count, turn, timeout_s=300.0 * count)
    except MeasurementError as error:
        console.print(str(error), style="red", markup=False)
        return 1
    text = markdown(work, rounds, load)
    console.print(text, markup=False)
    if options.report:
        path = report_path("costs")
        path.write_text(text)
        path.with_suffix(".json").write_text(json.dumps([asdict(r) for r in rounds], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
