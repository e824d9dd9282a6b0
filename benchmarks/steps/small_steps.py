"""`python -m benchmarks.steps.small_steps`: what a step costs besides its computing: LeNet-5, minibatches of 8.

A step takes about a millisecond there, so that whatever a run does once a step shows.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from rich.console import Console

from benchmarks.measurement import machine, millrace_runs
from benchmarks.measurement.comparison import Comparison, tables, take_turns, verdict, write_report
from benchmarks.measurement.millrace_runs import Ours
from benchmarks.measurement.processes import exit_on_sigterm
from benchmarks.measurement.report import as_bullets
from benchmarks.measurement.results import SYNC
from benchmarks.measurement.statistics import Spread, Target
from benchmarks.measurement.workload import Workload, data_title, find_data
from benchmarks.peers import bare_loop, limit

TORCH, LOOP = "a bare loop of torch", "Millrace's loop without Ray"
EXPECTED_PER_S = 8000.0
"""Examples/s; only sizes the jobs."""
WHOLE = Target("time of a step, the whole path to the bare loop", 1.10, "at most")
ALONE = Target("time of a step, Millrace's loop without Ray to the bare loop", 1.10, "at most")


def comparison(seconds: float) -> Comparison:
    """One process each."""
    work = Workload(find_data(None), model="lenet5", minibatch=8, workers=1, warmup_steps=400, seconds=seconds)
    return Comparison(
        f"{work.model} on {data_title(work.data)}, minibatches of {work.minibatch}, one worker of one thread",
        work,
        TORCH,
        {
            TORCH: limit.measure,
            LOOP: partial(bare_loop.measure, ours=Ours("sync"), expected_per_s=EXPECTED_PER_S),
            SYNC: partial(millrace_runs.measure, ours=Ours("sync"), expected_per_s=EXPECTED_PER_S),
        },
    )


def inverse(rates: Spread | None) -> Spread | None:
    """Ratios of times from those of rates."""
    return None if rates is None else Spread(tuple(1 / ratio for ratio in rates.values))


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 when something could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps.small_steps", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="how often everyone is measured (default 7)")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one measurement (default 5)")
    parser.add_argument("--report", action="store_true", help="write the dated report into benchmarks/results")
    options = parser.parse_args(arguments)
    exit_on_sigterm()
    console, before = Console(), machine.load()
    compared = comparison(options.seconds)
    take_turns([compared], options.rounds, console)
    rows = [verdict(target, inverse(compared.ratio(name))) for target, name in ((WHOLE, SYNC), (ALONE, LOOP))]
    load = {"load average before": before, "after": machine.load()}
    text = "\n\n".join(
        [
            "# The overhead of a step",
            as_bullets({**machine.describe(), **load}),
            "Medians over the rounds, in which the contenders take turns; ratios are taken within a round (paired). "
            "The optimiser is momentum SGD, fused for torch's loop. Nothing is evaluated or kept meanwhile.",
            *tables([compared], rows),
        ]
    )
    console.print(text, markup=False)
    if options.report:
        write_report("small-steps", text + "\n", [compared])
    return 1 if compared.failures else 0


if __name__ == "__main__":
    sys.exit(main())
