"""`python -m benchmarks.links`: every algorithm over slow links between nodes, and DDP on gloo over the same.

The nodes are network namespaces (benchmarks/links/namespaces.py), which needs root and iproute2.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from functools import partial

from rich.console import Console

from benchmarks.links import contenders, endless, namespaces
from benchmarks.links.contenders import DDP, FAST, LIMIT, OURS, Place
from benchmarks.links.overlap import overlap_of
from benchmarks.links.report import Found, markdown, raw
from benchmarks.measurement import machine
from benchmarks.measurement.processes import MeasurementError, alone, exit_on_sigterm
from benchmarks.measurement.report import RESULTS
from benchmarks.measurement.workload import Workload, find_data

PLACE_S = 3600.0
"""How long all rounds of a place may take, also where others compute on the machine."""
STEPS = 6  # of a trace


def measure_place(work: Workload, place: Place, rounds: int) -> Found:
    """Called in a process of its own, which stays on the first node; tells each figure at once."""
    work = replace(work, workers=place.nodes)
    found = Found(place, sum(p.numel() for p in work.build_model().parameters()))
    names = [LIMIT, DDP, *OURS]
    with namespaces.nodes(place.mbit_per_s, place.nodes) as there:
        for turn in range(rounds):
            first = turn % len(names)
            found.rounds.append({})
            for name in names[first:] + names[:first]:
                try:
                    rate = contenders.measure(name, work, there, found.num_parameters)
                except MeasurementError as error:
                    print(f"{place.title}, {name}: {error}", flush=True)
                    continue
                found.rounds[-1][name] = rate
                print(f"{place.title}, round {turn + 1}, {name}: {rate.examples_per_s:,.0f} examples/s", flush=True)
        spec = contenders.spec_of(work, OURS[FAST])
        found.overlap = overlap_of(endless.trace(work, spec, "trace", STEPS))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 when a place could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.links", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often everyone is measured (default 3)")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of one measurement (default 6)")
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4], choices=[2, 3, 4], help="numbers of nodes")
    parser.add_argument(
        "--mbit", type=float, nargs="+", default=[100.0, 1000.0, 10000.0], help="rates of the links, Mbit/s"
    )
    parser.add_argument("--report", action="store_true", help="write benchmarks/results/<today>-links.md and .json")
    options = parser.parse_args(arguments)
    exit_on_sigterm()
    if not namespaces.is_possible():
        parser.error("links need root and iproute2")
    work = Workload(find_data(None), minibatch=128, warmup_steps=4, seconds=options.seconds)
    console, before = Console(), machine.load()
    places = [Place(nodes, mbit) for nodes in options.nodes for mbit in options.mbit]
    try:
        measured = partial(alone, measure_place, work, timeout_s=PLACE_S)
        found = [measured(place, options.rounds) for place in places]
    except MeasurementError as error:
        console.print(str(error), style="red", markup=False)
        return 1
    text = markdown(work, found, (before, machine.load()))
    console.print(text, markup=False, soft_wrap=True)
    if options.report:
        path = RESULTS / f"{date.today().isoformat()}-links.md"
        path.write_text(text)
        path.with_suffix(".json").write_text(json.dumps(raw(found), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
