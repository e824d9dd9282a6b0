"""All contenders in turns at one place."""

from dataclasses import replace

from benchmarks.links import contenders, endless, namespaces
from benchmarks.links.contenders import DDP, FAST, LIMIT, OURS, Place
from benchmarks.links.overlap import overlap_of
from benchmarks.links.report import Found
from benchmarks.measurement.processes import MeasurementError
from benchmarks.measurement.workload import Workload

STEPS = 6  # of a trace


def measure_place(work: Workload, place: Place, rounds: int) -> Found:
    """Called in a process of its own, which stays on the first node; tells each figure at once."""
    work = replace(work, workers=place.workers)
    found = Found(place, sum(p.numel() for p in work.build_model().parameters()))
    names = [LIMIT, DDP, *OURS]
    with namespaces.nodes(place.mbit_per_s, place.nodes, place.per_node) as there:
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
