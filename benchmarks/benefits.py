"""`python -m benchmarks.benefits`: whether options that are to make training faster do, on one machine and over a link.

Each option is measured in pairs, with it and without it, that alternate: in every other round the other comes first.
The link is made of two network namespaces (benchmarks/links/namespaces.py); without root only one machine is measured.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.links import namespaces
from benchmarks.links.endless import Rate, run
from benchmarks.measurement import machine
from benchmarks.measurement.processes import MeasurementError, alone, exit_on_sigterm
from benchmarks.measurement.report import as_bullets, as_table, report_path
from benchmarks.measurement.statistics import Spread, paired
from benchmarks.measurement.workload import Workload, data_title, find_data
from trainers.spec import TrainSpec

REPORT_S = 0.5
ENDLESS = 1000  # epochs; a run is ended when enough of it was seen
ROUNDS = 5  # an option without effect is ahead in all of them once in 32 times
PLACE_S = 7200.0
"""How long all runs at one place may take, also where others compute on the machine."""
DOWNPOUR: dict[str, Any] = {"name": "downpour", "max_staleness": 1}
LAYERWISE = DOWNPOUR | {"push": "layerwise"}


@dataclass(frozen=True)
class Option:
    """What is measured with and without it."""

    name: str
    without: dict[str, Any]
    """The section `algorithm`."""
    added: dict[str, Any]
    workers: int
    threads: int = 1
    """Of each worker."""


@dataclass(frozen=True)
class Place:
    """Where it is measured."""

    name: str
    options: tuple[Option, ...]
    minibatch: int
    mbit_per_s: float | None = None
    """Of the link between two nodes with one worker each; without one all are on one node."""


FAST = Option("sync, reduction: fast", {"name": "sync"}, {"reduction": "fast"}, workers=2)
BACKPROP = Option(
    "downpour, backprop of 2 groups", LAYERWISE, {"backprop": {"groups": 2, "delay": 1}}, workers=1, threads=2
)
LAYER_BY_LAYER = "downpour, push: layerwise"
HERE = Place("one machine", (Option(LAYER_BY_LAYER, DOWNPOUR, {"push": "layerwise"}, workers=2), BACKPROP, FAST), 32)
LINK = Place(
    "link", (Option(LAYER_BY_LAYER, DOWNPOUR, {"push": "layerwise"}, workers=1), BACKPROP, FAST), 128, mbit_per_s=1000.0
)


Pair = tuple[Rate, Rate]
"""Without the option, and with it."""
Rounds = dict[str, list[dict[str, Pair]]]
"""By place, a round each, by option."""


def spec_of(work: Workload, place: Place, option: Option, is_on: bool) -> TrainSpec:
    """An endless run. Over a link the shards have a node of their own, and no second copy on the worker's."""
    shards: dict[str, Any] = {"shards": 2}
    if place.mbit_per_s is not None and option.without["name"] == "downpour":
        shards |= {"location": "own", "replicas": 1}
    return TrainSpec.model_validate(
        {
            "workers": {"count": option.workers, "threads": option.threads},
            "algorithm": option.without | (option.added if is_on else {}),
            "model": work.model,
            "data": work.data.model_dump(),
            "batch": place.minibatch,
            "optimizer": {"name": "momentum", "lr": work.lr, "momentum": work.momentum},
            "ps": shards,
            "evaluate": {"every_epochs": 0},
            "checkpoint": {"every_epochs": 0},
            "epochs": ENDLESS,
            "seed": work.seed,
            "report_every_s": REPORT_S,
        }
    )


def measure_place(work: Workload, place: Place, count: int) -> list[dict[str, Pair]]:
    """All rounds of all options at one place, on one Ray. Called in a process of its own; tells each pair at once."""
    found = list[dict[str, Pair]]()
    with _ray(place):
        for turn in range(count):
            first = turn % len(place.options)
            found.append({})
            for option in place.options[first:] + place.options[:first]:
                order = (False, True) if turn % 2 == 0 else (True, False)
                rates = {is_on: run(work, spec_of(work, place, option, is_on), f"bench-{is_on:d}") for is_on in order}
                found[-1][option.name] = (rates[False], rates[True])
                told = " and ".join(f"{rates[is_on].examples_per_s:,.0f}" for is_on in (False, True))
                print(f"{place.name}, round {turn + 1}, {option.name}: {told} examples/s without and with", flush=True)
    return found


@contextmanager
def _ray(place: Place) -> Iterator[None]:
    import trainers

    with trainers.embedded(num_cpus=4) if place.mbit_per_s is None else namespaces.nodes(place.mbit_per_s):
        yield


def verdict(ratio: Spread) -> str:
    """A benefit is shown where every round had one."""
    if len(ratio.values) >= ROUNDS and ratio.low > 1:
        return "benefit shown"
    return "none shown, slower in every round" if ratio.high < 1 else "none shown"


def ratio_of(rounds: Sequence[dict[str, Pair]], option: str) -> Spread:
    """Examples a second with the option to those without it, paired."""
    return paired([r[option][1].examples_per_s for r in rounds], [r[option][0].examples_per_s for r in rounds])


HEADER = ("option", "without, examples/s", "with", "with to without", "waiting, without", "with", "verdict")


def rows(rounds: Sequence[dict[str, Pair]]) -> list[tuple[str, ...]]:
    """A line an option."""
    found = []
    for name in sorted(rounds[0]):
        rates = [Spread(tuple(r[name][i].examples_per_s for r in rounds)) for i in (0, 1)]
        waiting = [Spread(tuple(r[name][i].waiting for r in rounds)).median for i in (0, 1)]
        ratio = ratio_of(rounds, name)
        told = f"{ratio.median:.2f} ({ratio.low:.2f}..{ratio.high:.2f})"
        medians = [f"{rate.median:,.0f} ({rate.low:,.0f}..{rate.high:,.0f})" for rate in rates]
        found.append((name, *medians, told, *(f"{share:.0%}" for share in waiting), verdict(ratio)))
    return found


def markdown(work: Workload, places: Sequence[Place], rounds: Rounds, loads: tuple[str, str]) -> str:
    """The whole report."""
    settings = {
        "work": f"{work.model} on {data_title(work.data)}, momentum SGD, 2 shards where there are shards",
        "measurement": f"{len(next(iter(rounds.values())))} rounds of pairs, {work.seconds:g} s a run after "
        f"{work.warmup_steps} steps of warm-up; medians (min..max); ratios are taken within a round",
        "verdict": f"a benefit is shown where every one of at least {ROUNDS} rounds had one; an option without effect "
        f"comes to that once in {2**ROUNDS} times",
        "waiting": "share of the workers' time in which they waited for communication",
    }
    parts = [
        "# What the options for speed bring",
        as_bullets({**machine.describe(), "load average before": loads[0], "after": loads[1]}),
        *filter(None, [machine.disturbed(loads[0])]),
        as_bullets(settings),
    ]
    for place in places:
        parts += [f"## On {_title(place)}", _setting(place), as_table(HEADER, rows(rounds[place.name]))]
    return "\n\n".join(parts) + "\n"


def _title(place: Place) -> str:
    return place.name if place.mbit_per_s is None else f"a link of {place.mbit_per_s:g} Mbit/s"


def _setting(place: Place) -> str:
    if place.mbit_per_s is None:
        return (
            f"Minibatches of {place.minibatch}, shared memory. Two workers of one thread each; for `backprop` one "
            "worker of two threads, with `push: layerwise` also without it."
        )
    return (
        f"Minibatches of {place.minibatch}. Two nodes on this machine in network namespaces, a token bucket each way. "
        "`sync`: a worker on each node. `downpour`: one worker on one node (with two threads for `backprop`), the "
        "shards on the other, without a second copy."
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 when something could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.benefits", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"pairs of each option and place (default {ROUNDS})")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of one measurement (default 6)")
    parser.add_argument("--data-root", type=Path, help="a folder with MNIST in torchvision's layout")
    parser.add_argument("--place", choices=[HERE.name, LINK.name], help="measure there only")
    parser.add_argument("--report", action="store_true", help="write the dated report into benchmarks/results")
    options = parser.parse_args(arguments)
    exit_on_sigterm()
    work = Workload(find_data(options.data_root), seconds=options.seconds)
    possible = [HERE, LINK] if namespaces.is_possible() else [HERE]
    places = [place for place in possible if options.place in (None, place.name)]
    if not places:
        parser.error("a link needs root and iproute2")
    console, before = Console(), machine.load()
    try:
        rounds = {p.name: alone(measure_place, work, p, options.rounds, timeout_s=PLACE_S) for p in places}
    except MeasurementError as error:
        console.print(str(error), style="red", markup=False)
        return 1
    text = markdown(work, places, rounds, (before, machine.load()))
    console.print(text, markup=False)
    if options.report:
        path = report_path("benefits")
        path.write_text(text)
        raw = {
            place: [{n: [asdict(rate) for rate in pair] for n, pair in each.items()} for each in found]
            for place, found in rounds.items()
        }
        path.with_suffix(".json").write_text(json.dumps(raw, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
