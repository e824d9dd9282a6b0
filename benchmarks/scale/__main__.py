"""`python -m benchmarks.scale`: how far real coordinator and shards follow min(K/T, 1/tau) up to 256 workers."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.measurement import machine
from benchmarks.measurement.processes import MeasurementError, exit_on_sigterm
from benchmarks.measurement.report import report_path
from benchmarks.scale.report import Report, markdown
from benchmarks.scale.rig import Figures, measure
from benchmarks.scale.sleepers import Sleepers

COUNTS = (8, 32, 128, 256)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 when something could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=COUNTS, help="how many sleep (default 8 32 128 256)")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of one measurement (default 60)")
    parser.add_argument("--think", type=float, default=3.2, help="T, seconds of a worker's minibatch (default 3.2)")
    parser.add_argument("--serve", type=float, default=0.05, help="tau, seconds of a push at a shard (default 0.05)")
    parser.add_argument("--report", action="store_true", help="write the dated report into benchmarks/results")
    options = parser.parse_args(arguments)
    exit_on_sigterm()
    sleepers, console = Sleepers(options.think, options.serve), Console()
    before, found, status = machine.load(), list[Figures](), 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("", total=len(options.workers))
            for count in options.workers:
                progress.update(task, description=f"{count} workers")
                found.append(measure(count, sleepers, options.seconds, disturb=True))
                progress.advance(task)
    except MeasurementError as error:
        console.print(str(error), style="red", markup=False)
        status = 1
    if found:
        text = markdown(Report(sleepers, found, options.seconds, (before, machine.load())))
        console.print(text, markup=False)
        if options.report:
            path = report_path("scale")
            path.write_text(text)
            path.with_suffix(".json").write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
