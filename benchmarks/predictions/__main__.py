"""`python -m benchmarks.predictions`: what a plan says of each algorithm and transport over throttled links, against
runs. What is measured stands in a ledger, so that the command may be ended at any time and goes on where it was.

Links are throttled between network namespaces (benchmarks/links/namespaces.py), which needs root and iproute2.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.links import namespaces
from benchmarks.measurement.processes import MeasurementError, alone, exit_on_sigterm
from benchmarks.measurement.report import report_path
from benchmarks.predictions.cases import PLACES, Place, cases_of
from benchmarks.predictions.ledger import Ledger
from benchmarks.predictions.measuring import Times, measure_place
from benchmarks.predictions.report import Comparison

PLACE_S = 3600.0
"""How long a place may take, also where others compute on the machine."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 while something is still to be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.predictions", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="how often every job is measured (default 2)")
    parser.add_argument("--seconds", type=float, default=4.0, help="each of three parts of a run (default 4)")
    parser.add_argument("--minutes", type=float, default=40.0, help="after which no more is begun (default 40)")
    parser.add_argument("--ledger", type=Path, help="default: benchmarks/results/<today>-predictions-<maker>.jsonl")
    parser.add_argument("--place", choices=[place.title for place in PLACES], help="measure this one only")
    parser.add_argument("--no-runs", action="store_true", help="only compare what the ledger has")
    parser.add_argument("--report", action="store_true", help="write the ledger's report beside it, as .md")
    options = parser.parse_args(arguments)
    ledger = Ledger(options.ledger or report_path("predictions").with_suffix(".jsonl"))
    console = Console()
    if not options.no_runs:
        exit_on_sigterm()
        if not namespaces.is_possible():
            parser.error("throttled links need root and iproute2")
        times = Times(part_s=options.seconds, until=time.time() + 60 * options.minutes)
        chosen = [place for place in PLACES if options.place in (None, place.title)]
        measure(ledger, options.rounds, times, console, chosen)
    missing = sum(len(ledger.missing(place, options.rounds)) for place in PLACES)
    comparison = Comparison(ledger)
    if comparison.rows:
        text = comparison.markdown()
        console.print(text, markup=False, soft_wrap=True)
        if options.report:
            ledger.path.with_suffix(".md").write_text(text)
    if missing:
        console.print(f"{missing} measurements are missing: run the same command again", style="yellow")
        return 1
    return 0


def measure(ledger: Ledger, rounds: int, times: Times, console: Console, places: Sequence[Place] = PLACES) -> None:
    """What the ledger lacks, as far as there is time for it."""
    for place in places:
        missing = ledger.missing(place, rounds)
        if not missing or time.time() > times.until:
            continue
        console.print(f"{place.title}: {len(missing)} measurements of {len(list(cases_of(place)))} jobs")
        try:
            alone(measure_place, place, missing, ledger, times, timeout_s=PLACE_S)
        except MeasurementError as error:
            console.print(f"{place.title}: {error}", style="red", markup=False)


if __name__ == "__main__":
    sys.exit(main())
