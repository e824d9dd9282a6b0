"""Sweeps: how busy trials that only sleep keep 8 logical CPUs, and what a trial costs besides its training.

`python -m benchmarks.sweeps` prints both as JSON. The first needs no idle machine, the second does.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import trainers
from service import Ledger, parse_sweep
from service.sweeps import control
from service.sweeps.local import LocalSweep
from tests.sweeps.sleeping import Sleeping
from trainers import Event, JournalReader

CPUS = 8
SLEEPS_S = (10.0, 15.0, 20.0)
"""A trial. Where trials are shorter than a process takes to start, Tune hands each place that becomes free to a trial
whose own process is on its way, and ends that: few processes then ever come up."""
DIGITS = {"data": "digits", "model": "mlp", "workers": 1, "epochs": 5, "batch": {"per_worker": 8, "base": 8}}


def packing(folder: Path) -> dict[str, float]:
    """Share of the CPU seconds between the first start and the last in which a trial slept on them."""
    job = {"workers": 1, "epochs": 1}
    axes = {"report_every_s": list(SLEEPS_S), "seed": list(range(12))}
    ledger = _run(parse_sweep({"job": job, "axes": axes}), folder, Sleeping)
    spans = [_span(ledger, row.id) for row in ledger.trials()]
    first, last = min(start for start, _ in spans), max(start for start, _ in spans)
    slept_s = sum(max(0.0, min(end, last) - start) for start, end in spans)
    return {"trials": len(spans), "seconds": last - first, "busy": slept_s / (CPUS * (last - first))}


def overhead(folder: Path) -> dict[str, Any]:
    """Seconds from a trial's place being free to its first step, and from its last step to its place being free."""
    spec = parse_sweep({"job": DIGITS, "axes": {"seed": list(range(8))}, "limits": {"concurrent": 1}})
    ledger = _run(spec, folder, None)
    began = next(event.time for event in JournalReader(folder).read() if event.type == "state")
    costs, free = [], began
    for row in ledger.trials():
        events = list(JournalReader(ledger.run_dir(row.id)).read())
        steps = [event.time for event in events if event.type in ("step", "epoch")]
        costs.append((steps[0] - free) + (events[-1].time - steps[-1]))
        free = events[-1].time
    return {"cold_s": costs[0], "warm_s": costs[1:]}


def _run(spec: Any, folder: Path, trainable: Any) -> Ledger:
    ledger = control.begin(folder, f"sweep-{folder.name}", spec)
    control.keep(ledger, trainable)
    LocalSweep(ledger).run(_nothing)
    return ledger


def _nothing(event: Event) -> None:
    return


def _span(ledger: Ledger, trial: str) -> tuple[float, float]:
    events = list(JournalReader(ledger.run_dir(trial)).read())
    return events[0].time, events[-1].time


def main() -> None:
    """Measure both."""
    with tempfile.TemporaryDirectory() as temp, trainers.embedded(num_cpus=CPUS):
        for measure in (packing, overhead):
            told = measure(Path(temp) / measure.__name__)
            print(json.dumps({measure.__name__: told}), flush=True)


if __name__ == "__main__":
    main()
