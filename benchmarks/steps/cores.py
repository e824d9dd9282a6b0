"""`python -m benchmarks.steps.cores`: two workers of one thread against one of two, and workers that keep to a core."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from rich.console import Console

from benchmarks.measurement import machine, millrace_runs
from benchmarks.measurement.comparison import Comparison, tables, take_turns, verdict, write_report
from benchmarks.measurement.contender import Measurement
from benchmarks.measurement.millrace_runs import Ours
from benchmarks.measurement.processes import exit_on_sigterm
from benchmarks.measurement.report import as_bullets
from benchmarks.measurement.statistics import Spread, Target
from benchmarks.measurement.workload import Workload, data_title, find_data

TWO, ONE = "two workers of one thread, bind: none", "one worker of two threads, bind: none"
AUTO, CORES = "two workers of one thread, bind: auto", "two workers of one thread, bind: cores"
EXPECTED_PER_S = 1200.0
"""Examples/s; only sizes the jobs."""


def as_one(work: Workload) -> Measurement:
    """The same minibatch of all workers on one worker with all their threads."""
    one = replace(work, workers=1, minibatch=work.minibatch * work.workers)
    return millrace_runs.measure(one, Ours("sync", threads=work.workers, bind="none"), EXPECTED_PER_S)


def comparison(seconds: float) -> Comparison:
    """`sync`, 64 examples a step whoever computes them."""
    work = Workload(find_data(None), seconds=seconds)
    measured = partial(millrace_runs.measure, expected_per_s=EXPECTED_PER_S)
    binds = {TWO: "none", AUTO: "auto", CORES: "cores"}
    return Comparison(
        f"{work.model} on {data_title(work.data)}, `sync`, {work.minibatch * work.workers} examples a step",
        work,
        TWO,
        {name: partial(measured, ours=Ours("sync", bind=bind)) for name, bind in binds.items()} | {ONE: as_one},  # type: ignore[arg-type]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 when something could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps.cores", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often everyone is measured (default 5)")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of one measurement (default 4)")
    parser.add_argument("--report", action="store_true", help="write the dated report into benchmarks/results")
    options = parser.parse_args(arguments)
    exit_on_sigterm()
    console, before = Console(), machine.load()
    compared = comparison(options.seconds)
    take_turns([compared], options.rounds, console)
    rows = [verdict(Target("examples/s, `bind: auto` to the best of the others", 0.95), auto_to_best(compared))]
    load = {"load average before": before, "after": machine.load()}
    parts = [
        "# Workers, threads and cores",
        as_bullets({**machine.describe(), **load}),
        machine.disturbed(before),
        "Medians over the rounds, in which the contenders take turns; ratios are taken within a round (paired). What a "
        "machine with several NUMA nodes gains is not measured here.",
        *tables([compared], rows),
    ]
    text = "\n\n".join(part for part in parts if part)
    console.print(text, markup=False, soft_wrap=True)
    if options.report:
        write_report("cores", text + "\n", [compared])
    return 1 if compared.failures else 0


def auto_to_best(compared: Comparison) -> Spread | None:
    """Paired with whichever of the others has the highest median."""
    best = compared.best(name for name in compared.contenders if name != AUTO)
    return None if best is None else compared.ratio(AUTO, best)


if __name__ == "__main__":
    sys.exit(main())
