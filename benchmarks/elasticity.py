"""`python -m benchmarks.elasticity`: what a start, a death and a resize cost, beside Ray Train on the same model."""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.measurement import machine
from benchmarks.measurement.millrace_runs import running, worker_pids
from benchmarks.measurement.processes import MeasurementError, alone, exit_on_sigterm
from benchmarks.measurement.report import as_bullets, as_table, report_path
from benchmarks.measurement.statistics import Spread, Target
from benchmarks.measurement.workload import Workload, data_title, find_data
from benchmarks.peers import ray_train
from trainers.events import Event
from trainers.spec import TrainSpec

PEER = "Ray Train, num_workers=(1, 2)"
REPORT_S = 0.05
"""How often our workers report: so much later than it was made a step may be seen."""
MINIBATCHES_BEFORE = 200
ENDLESS = 1000  # epochs
TIMEOUT_S = 60.0
ALGORITHMS = {"sync": {"workers": {"count": 2, "virtual": 4}}, "downpour": {"workers": {"count": 2, "max": 4}}}
TARGETS = {
    "first_s": Target("submit to the first step, warm processes, s", 3.0, "at most"),
    "next_s": Target("kill of a worker to the next completed step, s", 1.0, "at most"),
    "full_s": Target("kill to as many workers as before, no spare, s", 6.0, "at most"),
    "grown_s": Target("scale to the first contribution of the new worker, s", 6.0, "at most"),
}


@dataclass(frozen=True)
class Story:
    """One run of ours: killed once, scaled once."""

    cold_s: float
    """Submit to the first step on a Ray that has just started."""
    first_s: float
    """Likewise of a second run on it."""
    next_s: float
    full_s: float
    grown_s: float
    repeated: int
    """Examples that were trained and not kept, or trained twice."""


def spec_of(work: Workload, algorithm: str) -> TrainSpec:
    """`convnet`, endless for the purpose."""
    return TrainSpec.model_validate(
        {
            **ALGORITHMS[algorithm],
            "algorithm": algorithm,
            "model": "convnet",
            "data": work.data.model_dump(),
            "batch": work.minibatch,
            "optimizer": {"name": "momentum", "lr": work.lr, "momentum": work.momentum},
            "evaluate": {"every_epochs": 0},
            "checkpoint": {"every_epochs": 0},
            "epochs": ENDLESS,
            "seed": work.seed,
            "report_every_s": REPORT_S,
        }
    )


def measure(work: Workload, algorithm: str) -> Story:
    """A Ray of its own."""
    return alone(_drive, work, algorithm)


class Reader:
    """Follows a run's events to what is waited for."""

    def __init__(self, events: Iterator[Event]) -> None:
        self.events = events
        self.last: dict[str, Event] = {}
        self.examples = 0

    def until(self, event_type: str, examples: int = 0) -> Event:
        """The next event of a type, of steps the next with more than so many examples in all."""
        deadline = time.monotonic() + TIMEOUT_S
        for event in self.events:
            if event.is_terminal:
                raise MeasurementError(f"the job ended as {event.data}")
            self.last[event.type] = event
            self.examples = max(self.examples, int(event.data.get("examples", 0)))
            if event.type == event_type and (event_type != "step" or event.data["examples"] > examples):
                return event
            if time.monotonic() > deadline:
                break
        raise MeasurementError(f"no {event_type} within {TIMEOUT_S:g} s")


def _drive(work: Workload, algorithm: str) -> Story:
    spec = spec_of(work, algorithm)
    with running(work, spec) as (submitted, follow):
        return _story(work, spec, submitted, follow)  # whose handles of actors are gone before Ray is


def _story(work: Workload, spec: TrainSpec, submitted: float, follow: Callable[[], Iterator[Event]]) -> Story:
    import trainers

    cold = _first_step(Reader(follow()), submitted)
    first = trainers.find_run("bench")
    assert first is not None
    first.cancel()
    for _ in follow():  # to its end
        pass
    folder = Path(tempfile.mkdtemp(prefix="millrace-bench-"))
    begun = time.time()
    run = trainers.start_run("again", spec, folder)
    reader = Reader(_events(folder))
    warm = _first_step(reader, begun)
    enough = MINIBATCHES_BEFORE * work.minibatch
    reader.until("step", enough)
    killed = time.time()
    os.kill(worker_pids(reader.last["actors"])[-1], signal.SIGKILL)
    fault = reader.until("fault")
    next_s = reader.until("step", int(fault.data["examples"])).time - killed
    full = reader.until("resize").time - killed
    reader.until("step", reader.examples + enough)
    asked = time.time()
    run.scale(3)
    joined = reader.until("resize")
    grown = _contributed(reader, 3, int(joined.data["examples"])) - asked
    repeated = sum(e.data["lost"] + e.data["duplicated"] for e in reader.last.values() if e.type == "epoch_audit")
    run.cancel()
    for event in reader.events:
        if event.is_terminal:
            break
    return Story(cold, warm, next_s, full, grown, repeated)


def _first_step(reader: Reader, submitted: float) -> float:
    return reader.until("step").time - submitted


def _contributed(reader: Reader, workers: int, examples: int) -> float:
    """When so many workers had part in a report."""
    while (event := reader.until("step", examples)).data["workers"] < workers:
        examples = int(event.data["examples"])
    return event.time


def _events(folder: Path) -> Iterator[Event]:
    from trainers.runtime.event_log import EventLogReader

    reader = EventLogReader(folder)
    while True:
        for event in reader.read():
            yield event
            if event.is_terminal:
                return
        time.sleep(0.005)


Rounds = list[dict[str, Any]]


def run_rounds(work: Workload, count: int, progress: Progress) -> Rounds:
    """All in turn."""
    rounds: Rounds = []
    task = progress.add_task("", total=count * (len(ALGORITHMS) + 1))
    for turn in range(count):
        rounds.append({})
        for name in [*ALGORITHMS, PEER]:
            progress.update(task, description=f"round {turn + 1}: {name}")
            rounds[-1][name] = ray_train.measure(work) if name == PEER else measure(work, name)
            progress.advance(task)
    return rounds


def _told(values: Sequence[float]) -> str:
    spread = Spread(tuple(values))
    return f"{spread.median:.2f} ({min(values):.2f}..{max(values):.2f})"


def markdown(work: Workload, rounds: Rounds, loads: tuple[str, str]) -> str:
    """The whole report."""
    peer = [r[PEER] for r in rounds]
    rows = [
        ("cold start: submit to the first step", "cold_s", "first_step_s"),
        ("warm start", "first_s", None),
        ("kill to the next completed step", "next_s", "next_step_s"),
        ("kill to full strength", "full_s", "full_strength_s"),
        ("scale to the newcomer's first contribution", "grown_s", None),
    ]
    table = [
        (title, *(_told([getattr(r[name], ours) for r in rounds]) for name in ALGORITHMS),
         "-" if theirs is None else _told([getattr(p, theirs) for p in peer]))
        for title, ours, theirs in rows
    ]  # fmt: skip
    repeated = [str(sum(r[name].repeated for r in rounds)) for name in ALGORITHMS]
    table.append(("steps repeated", *repeated, _told([p.repeated for p in peer])))
    verdicts = [
        (target.name, name, f"{target.bound:g}", _told(values), target.verdict(Spread(tuple(values))))
        for field, target in TARGETS.items()
        for name in ALGORITHMS
        for values in [[getattr(r[name], field) for r in rounds]]
    ]
    settings = {
        "work": f"convnet on {data_title(work.data)}, 2 workers of one thread, minibatch {work.minibatch} each; "
        "sync has 4 virtual workers; no spare processes",
        "measurement": f"{len(rounds)} rounds, medians and range, seconds; our workers report every {REPORT_S:g} s",
        "peer": f"DDP on gloo, a checkpoint every {ray_train.CHECKPOINT_STEPS} steps",
    }
    return "\n\n".join([
        "# What a start, a death and a resize cost",
        as_bullets({**machine.describe(), "load average before": loads[0], "after": loads[1]}),
        as_bullets(settings),
        as_table(("seconds", *ALGORITHMS, PEER), table),
        "## Against the contract",
        as_table(("what", "algorithm", "bound", "measured", "verdict"), verdicts),
    ]) + "\n"  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 when something could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.elasticity", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often everything is measured (default 5)")
    parser.add_argument("--data-root", type=Path, help="a folder with MNIST in torchvision's layout")
    parser.add_argument("--report", action="store_true", help="write the dated report into benchmarks/results")
    options = parser.parse_args(arguments)
    exit_on_sigterm()
    work = Workload(find_data(options.data_root), workers=2)
    console, before = Console(), machine.load()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console) as progress:
            rounds = run_rounds(work, options.rounds, progress)
    except MeasurementError as error:
        console.print(str(error), style="red", markup=False)
        return 1
    text = markdown(work, rounds, (before, machine.load()))
    console.print(text, markup=False)
    if options.report:
        path = report_path("elasticity")
        path.write_text(text)
        raw = [{name: asdict(one) for name, one in each.items()} for each in rounds]
        path.with_suffix(".json").write_text(json.dumps(raw, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
