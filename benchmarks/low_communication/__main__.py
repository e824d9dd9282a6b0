"""`python -m benchmarks.low_communication`: seconds and bytes to a target, of algorithms that seldom communicate.

Two groups of workers with a slow link between them (benchmarks/links/namespaces.py), which needs root and iproute2.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.links import namespaces
from benchmarks.low_communication.contenders import CONTENDERS, Task, task_of, write_guide
from benchmarks.low_communication.race import SLACK_S, Found, race
from benchmarks.low_communication.report import markdown, raw
from benchmarks.measurement import machine
from benchmarks.measurement.processes import MeasurementError, alone, exit_on_sigterm
from benchmarks.measurement.report import report_path


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 when a run could not be measured."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.text and not options.text.exists():
        parser.error(f"there is no text at {options.text}")
    if not namespaces.is_possible():
        parser.error("links need root and iproute2")
    exit_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        guide = Path(folder) / "guide.txt"
        write_guide(guide)
        tasks = [task_of(data, options.text or guide, options.target) for data in options.data]
        return _measure(options, tasks)


def _measure(options: argparse.Namespace, tasks: Sequence[Task]) -> int:
    console, before = Console(), machine.load()
    places = [Found(task, rate, options.group) for task in tasks for rate in options.rate]
    seeds = [seed for _ in range(options.rounds) for seed in range(options.seeds)]
    found, path = list[Found](), report_path("low-communication")
    for place in places:
        longest = len(seeds) * len(options.only) * (options.seconds + SLACK_S) + namespaces.START_S
        try:
            found.append(alone(race, place, options.only, seeds, options.seconds, timeout_s=longest))
        except MeasurementError as error:
            console.print(f"{place.title}: {error}", style="red", markup=False)
            continue
        text = markdown(found, options.seconds, (before, machine.load()))
        if options.report:  # after each place, for all of them take long
            path.write_text(text)
            path.with_suffix(".json").write_text(json.dumps(raw(found), indent=1) + "\n")
    if found:
        console.print(text, markup=False, soft_wrap=True)
    return len(found) < len(places) or any(place.failures for place in found)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.low_communication", description=__doc__)
    add = parser.add_argument
    add("--rate", type=float, nargs="+", default=[10.0, 100.0, 1000.0], help="of the link, Mbit/s")
    add("--data", nargs="+", default=["digits", "text"], choices=["digits", "text"], help="what is learned")
    add("--rounds", type=int, default=1, help="how often everyone trains with every seed (default 1)")
    add("--seeds", type=int, default=3, help="so many seeds, a round each (default 3)")
    add("--only", nargs="+", default=list(CONTENDERS), choices=list(CONTENDERS), help="some of the contenders")
    add("--group", type=int, default=2, help="workers of each of the two groups (default 2)")
    add("--seconds", type=float, default=300.0, help="after which a run has not reached the target (default 300)")
    add("--target", type=float, help="accuracy of the digits (default 0.97), or loss of the text (default 2.7)")
    add("--text", type=Path, help="a file or folder of text; left out, this repository's guide")
    add("--report", action="store_true", help="write the dated report into benchmarks/results")
    return parser


if __name__ == "__main__":
    sys.exit(main())
