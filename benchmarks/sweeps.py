"""Sweeps: how busy trials that only sleep keep 8 logical CPUs, and what a trial costs besides its training.

`python -m benchmarks.sweeps` prints both as JSON. The first needs no idle machine, the second does.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trainers
from benchmarks.measurement import machine
from benchmarks.measurement.report import as_bullets, report_path
from benchmarks.measurement.statistics import Spread
from service import TrialStore, parse_sweep
from service.sweeps import control
from service.sweeps.local import LocalSweep
from tests.service.sweeps.sleeping_trial import Sleeping
from trainers import Event, EventLogReader

CPUS = 8
SLEEPS_S = (10.0, 15.0, 20.0)
"""A trial. Where trials are shorter than a process takes to start, Tune hands each place that becomes free to a trial
whose own process is on its way, and ends that: few processes then ever come up."""
DIGITS = {"data": "digits", "model": "mlp", "workers": 1, "epochs": 5, "batch": {"per_worker": 8, "base": 8}}


def packing(folder: Path) -> dict[str, float]:
    """Share of the CPU seconds between the first start and the last in which a trial slept on them."""
    job = {"workers": 1, "epochs": 1}
    axes = {"report_every_s": list(SLEEPS_S), "seed": list(range(12))}
    store = _run(parse_sweep({"job": job, "axes": axes}), folder, Sleeping)
    spans = [_span(store, row.id) for row in store.trials()]
    first, last = min(start for start, _ in spans), max(start for start, _ in spans)
    slept_s = sum(max(0.0, min(end, last) - start) for start, end in spans)
    return {"trials": len(spans), "seconds": last - first, "busy": slept_s / (CPUS * (last - first))}


def overhead(folder: Path) -> dict[str, Any]:
    """Seconds from a trial's place being free to its first step, and from its last step to its place being free."""
    spec = parse_sweep({"job": DIGITS, "axes": {"seed": list(range(8))}, "limits": {"concurrent": 1}})
    store = _run(spec, folder, None)
    began = next(event.time for event in EventLogReader(folder).read() if event.type == "state")
    costs, free = [], began
    for row in store.trials():
        events = list(EventLogReader(store.run_dir(row.id)).read())
        steps = [event.time for event in events if event.type in ("step", "epoch")]
        costs.append((steps[0] - free) + (events[-1].time - steps[-1]))
        free = events[-1].time
    return {"cold_s": costs[0], "warm_s": costs[1:]}


def _run(spec: Any, folder: Path, trainable: Any) -> TrialStore:
    store = control.begin(folder, f"sweep-{folder.name}", spec)
    control.keep(store, trainable=trainable)
    LocalSweep(store).run(_nothing)
    return store


def _nothing(event: Event) -> None:
    return


def _span(store: TrialStore, trial: str) -> tuple[float, float]:
    events = list(EventLogReader(store.run_dir(trial)).read())
    return events[0].time, events[-1].time


def markdown(packed: dict[str, float], costs: dict[str, Any], load: dict[str, str]) -> str:
    """The whole report."""
    warm = Spread(tuple(costs["warm_s"]))
    parts = [
        "# Sweeps on one machine",
        as_bullets({**machine.describe(), **load}),
        *filter(None, [machine.disturbed(load["load average before"])]),
        f"{packed['trials']:.0f} trials that sleep for 10, 15 or 20 s, on {CPUS} logical CPUs: between the first start "
        f"and the last, {packed['seconds']:.0f} s, a trial slept on {100 * packed['busy']:.1f} % of the CPU seconds.",
        "What a trial costs besides its training, one after the other: from its place being free to its first step, "
        f"and from its last step to its place being free. The first {costs['cold_s']:.2f} s; each of the "
        f"{len(costs['warm_s'])} that follow {warm.median:.2f} s (median; {warm.low:.2f} to {warm.high:.2f}).",
    ]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweeps", description=__doc__)
    parser.add_argument("--report", action="store_true", help="write the dated report into benchmarks/results")
    options = parser.parse_args(arguments)
    before, found = machine.load(), dict[str, Any]()
    with tempfile.TemporaryDirectory() as temp, trainers.embedded(num_cpus=CPUS):
        for measure in (packing, overhead):
            found[measure.__name__] = measure(Path(temp) / measure.__name__)
            print(json.dumps({measure.__name__: found[measure.__name__]}), flush=True)
    if options.report:
        path = report_path("sweeps")
        path.write_text(markdown(found["packing"], found["overhead"], {"load average before": before}))
        path.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
