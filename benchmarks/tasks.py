"""`python -m benchmarks.tasks`: what the open task costs: a small GPT against DDP and processes that never talk."""

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
from benchmarks.measurement.results import DDP, LIMIT, LIMIT_OURS, SYNC
from benchmarks.measurement.statistics import Target
from benchmarks.measurement.workload import gpt
from benchmarks.peers import ddp, limit
from benchmarks.peers.ddp import DdpConfig

EXPECTED_PER_S = 300.0
"""Windows/s of two workers; only sizes the jobs."""
TO_LIMIT, TO_DDP = Target("gpt: sync to the limit", 0.95), Target("gpt: sync to DDP", 1.0)


def comparison(seconds: float) -> Comparison:
    """All contenders on the same model and text."""
    work = gpt(seconds)
    return Comparison(
        f"gpt of 4 layers, width 128, on {work.data.root.rpartition('/')[2]}, {work.minibatch} windows of "
        f"{work.data.context} characters a worker, 2 workers",
        work,
        LIMIT,
        {
            LIMIT: limit.measure,
            LIMIT_OURS: lambda work: limit.measure(replace(work, our_products=True)),
            DDP: partial(ddp.measure, config=DdpConfig()),
            SYNC: partial(millrace_runs.measure, ours=Ours("sync"), expected_per_s=EXPECTED_PER_S),
        },
    )


def markdown(compared: Comparison, load: dict[str, str]) -> str:
    """The whole report."""
    rows = [verdict(TO_LIMIT, compared.ratio(SYNC)), verdict(TO_DDP, compared.ratio(SYNC, DDP))]
    parts = ["# The task: a language model on one machine", as_bullets({**machine.describe(), **load})]
    parts.append(
        "Medians over the rounds, in which the contenders take turns; ratios are taken within a round (paired). An "
        "example is a window. The limit is two processes that never talk, each with its own plain loop of torch. "
        "Processes have one thread each, the optimiser is momentum SGD (fused for the peers)."
    )
    return "\n\n".join([*parts, *tables([compared], rows)]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 when something could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tasks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often everyone is measured (default 5)")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of one measurement (default 8)")
    parser.add_argument("--report", action="store_true", help="write the dated report into benchmarks/results")
    options = parser.parse_args(arguments)
    exit_on_sigterm()
    console, before = Console(), machine.load()
    compared = comparison(options.seconds)
    take_turns([compared], options.rounds, console)
    text = markdown(compared, {"load average before": before, "after": machine.load()})
    console.print(text, markup=False)
    if options.report:
        write_report("tasks", text, [compared])
    return 1 if compared.failures else 0


if __name__ == "__main__":
    sys.exit(main())
