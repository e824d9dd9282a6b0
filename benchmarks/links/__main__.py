"""`python -m benchmarks.links`: every algorithm over slow links between nodes, and DDP on gloo over the same.

The nodes are network namespaces (benchmarks/links/namespaces.py), which needs root and iproute2.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console

from benchmarks.links import namespaces
from benchmarks.links.contenders import Place
from benchmarks.links.report import Found, markdown, raw, restored
from benchmarks.links.rounds import measure_place
from benchmarks.measurement import machine
from benchmarks.measurement.processes import MeasurementError, alone, exit_on_sigterm
from benchmarks.measurement.report import report_path
from benchmarks.measurement.workload import Workload, find_data

PLACE_S = 3600.0
"""How long all rounds of a place may take, also where others compute on the machine."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 when a place could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.links", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often everyone is measured (default 3)")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of one measurement (default 6)")
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4], choices=[2, 3, 4], help="numbers of nodes")
    parser.add_argument(
        "--per-node", type=int, default=1, choices=[1, 2, 3, 4], help="workers of each node (default 1)"
    )
    parser.add_argument(
        "--mbit", type=float, nargs="+", default=[100.0, 1000.0, 10000.0], help="rates of the links, Mbit/s"
    )
    parser.add_argument(
        "--report",
        action="store_true",
        help="write the dated report into benchmarks/results; other places that it tells of are kept",
    )
    options = parser.parse_args(arguments)
    exit_on_sigterm()
    if not namespaces.is_possible():
        parser.error("links need root and iproute2")
    work = Workload(find_data(None), minibatch=128, warmup_steps=4, seconds=options.seconds)
    console, before = Console(), machine.load()
    places = [Place(nodes, mbit, options.per_node) for nodes in options.nodes for mbit in options.mbit]
    found, path = list[Found](), report_path("links")
    kept = restored(json.loads(path.with_suffix(".json").read_text())) if path.with_suffix(".json").exists() else []
    for place in places:
        try:
            load = machine.load()
            found.append(replace(alone(measure_place, work, place, options.rounds, timeout_s=PLACE_S), load=load))
        except MeasurementError as error:
            console.print(f"{place.title}: {error}", style="red", markup=False)
            continue
        text = markdown(work, found, (before, machine.load()))
        if options.report:  # after each place, for all of them take long
            both = found + [one for one in kept if one.place not in {mine.place for mine in found}]
            both.sort(key=lambda one: (one.place.nodes, one.place.per_node, one.place.mbit_per_s))
            path.write_text(markdown(work, both, (before, machine.load())))
            path.with_suffix(".json").write_text(json.dumps(raw(both), indent=1) + "\n")
    if found:
        console.print(text, markup=False, soft_wrap=True)
    return len(found) < len(places)


if __name__ == "__main__":
    sys.exit(main())
