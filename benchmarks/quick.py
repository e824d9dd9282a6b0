"""`python -m benchmarks.quick`: three minutes of `benchmarks.throughput`, for use at every change."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from rich.console import Console

from benchmarks.measurement import machine, millrace_runs
from benchmarks.measurement.comparison import Comparison, tables, take_turns, verdict, write_report
from benchmarks.measurement.millrace_runs import Ours
from benchmarks.measurement.processes import exit_on_sigterm
from benchmarks.measurement.report import as_bullets
from benchmarks.measurement.results import DDP, DOWNPOUR, LIMIT_OURS, SYNC
from benchmarks.measurement.statistics import Target
from benchmarks.measurement.workload import Workload, data_title, find_data
from benchmarks.peers import ddp, limit
from benchmarks.peers.ddp import DdpConfig

HYBRID = "Millrace hybrid"
PARALLEL_SGD, ADMM = "Millrace parallel_sgd", "Millrace admm, consensus"
EXPECTED_PER_S = 1200.0
"""Examples/s of two workers; only sizes the jobs."""
AVERAGED = {PARALLEL_SGD: Ours("parallel_sgd"), ADMM: Ours("admm")}
"""Whose workers step alone between two averages."""
RATIOS = (
    (Target("sync to the limit", 0.95), SYNC, LIMIT_OURS),
    (Target("downpour to the limit", 0.90), DOWNPOUR, LIMIT_OURS),
    (Target("hybrid to the limit", 0.97), HYBRID, LIMIT_OURS),
    (Target("parallel_sgd to the limit", 0.97), PARALLEL_SGD, LIMIT_OURS),
    (Target("admm to the limit", 0.97), ADMM, LIMIT_OURS),
    (Target("sync to DDP", 1.4), SYNC, DDP),
    (Target("downpour to DDP", 1.15), DOWNPOUR, DDP),
)


def comparison(work: Workload, averages: bool = False) -> Comparison:
    """Millrace's algorithms beside DDP and two processes that never talk, whose products are the faster ones.

    averages: Measure those too that average parameters.
    """
    ours = {SYNC: Ours("sync"), DOWNPOUR: Ours("downpour"), HYBRID: Ours("hybrid")} | (AVERAGED if averages else {})
    measured = partial(millrace_runs.measure, expected_per_s=EXPECTED_PER_S)
    return Comparison(
        f"{work.model} on {data_title(work.data)}, {work.minibatch} examples a worker, {work.workers} workers",
        work,
        LIMIT_OURS,
        {
            LIMIT_OURS: lambda work: limit.measure(replace(work, our_products=True)),
            DDP: partial(ddp.measure, config=DdpConfig()),
            **{name: partial(measured, ours=one) for name, one in ours.items()},
        },
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 when something could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quick", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often everyone is measured (default 3)")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of one measurement (default 4)")
    parser.add_argument("--averages", action="store_true", help="measure parallel_sgd and admm too")
    parser.add_argument("--report", action="store_true", help="write the dated report into benchmarks/results")
    options = parser.parse_args(arguments)
    exit_on_sigterm()
    console, before = Console(), machine.load()
    compared = comparison(Workload(find_data(None), seconds=options.seconds), options.averages)
    take_turns([compared], options.rounds, console)
    rows = [verdict(target, compared.ratio(name, base)) for target, name, base in RATIOS if name in compared.contenders]
    about = as_bullets({**machine.describe(), "load average before": before, "after": machine.load()})
    text = "\n\n".join(["# Throughput, quickly", about, *tables([compared], rows)])
    console.print(text, markup=False, soft_wrap=True)
    if options.report:
        write_report("quick", text + "\n", [compared])
    return 1 if compared.failures else 0


if __name__ == "__main__":
    sys.exit(main())
