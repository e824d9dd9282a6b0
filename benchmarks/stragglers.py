"""`python -m benchmarks.stragglers`: what one slow worker costs a synchronous run, with a backup worker and without."""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.measurement import machine
from benchmarks.measurement.millrace_runs import running, worker_pids
from benchmarks.measurement.processes import MeasurementError, alone, exit_on_sigterm
from benchmarks.measurement.report import as_bullets, as_table, report_path
from benchmarks.measurement.slowdown import slowed
from benchmarks.measurement.statistics import Spread, Target, paired
from benchmarks.measurement.workload import Workload, data_title, find_data
from trainers.events import Event, Metrics
from trainers.spec import TrainSpec

WORKERS, FACTOR = 4, 10.0
REPORT_S = 0.1
ENDLESS = 1000  # epochs; the run is ended when enough of it was seen
BACKUP = {"name": "sync", "form": "parameter_server", "backup": 1}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "sync, one backup worker": BACKUP,
    "sync, through shards": {"name": "sync", "form": "parameter_server"},
    "sync": {"name": "sync"},
}
TARGET = Target("median step with a slow worker to the clean run's, one backup worker", 1.5, "at most")


@dataclass(frozen=True)
class Steps:
    """One run in one round."""

    median_s: float
    """Seconds a step, median over the reports."""
    dropped: float
    """Share of the computed minibatches whose gradients were dropped."""


Report = tuple[float, Metrics]
"""When it was made, and what it says."""

Rounds = list[dict[str, tuple[Steps, Steps]]]
"""By algorithm: the clean run and the one with a slow worker."""


def spec_of(work: Workload, algorithm: dict[str, Any]) -> TrainSpec:
    """`convnet`, endless for the purpose."""
    return TrainSpec.model_validate(
        {
            "workers": {"count": work.workers, "threads": 1},
            "algorithm": algorithm,
            "model": "convnet",
            "data": work.data.model_dump(),
            "batch": work.minibatch,
            "optimizer": {"name": "momentum", "lr": work.lr, "momentum": work.momentum},
            "ps": 2,
            "evaluate": {"every_epochs": 0},
            "checkpoint": {"every_epochs": 0},
            "epochs": ENDLESS,
            "seed": work.seed,
            "report_every_s": REPORT_S,
        }
    )


def measure(work: Workload, algorithm: dict[str, Any], factor: float) -> Steps:
    """A run on a cluster of its own; its last worker is slowed after the warm-up, where `factor` is above 1."""
    return alone(_drive, work, algorithm, factor)


def analyse(reports: Sequence[Report]) -> Steps:
    """From the reports of the measured part.

    Raises:
        MeasurementError: There were no steps in it.
    """
    (begun, first), (ended, last) = reports[0], reports[-1]
    paces, at, before = list[float](), begun, first
    for now, metrics in reports[1:]:
        if metrics.step > before.step:  # a report without a step belongs to the next that has one
            paces += [(now - at) / (metrics.step - before.step)] * (metrics.step - before.step)
            at, before = now, metrics
    if not paces:
        raise MeasurementError(f"no step in {ended - begun:.1f} s")
    pushed = sum(last.staleness.values()) - sum(first.staleness.values())
    dropped = last.dropped - first.dropped
    return Steps(statistics.median(paces), dropped / max(1, dropped + pushed))


def _drive(work: Workload, algorithm: dict[str, Any], factor: float) -> Steps:
    with running(work, spec_of(work, algorithm)) as (_, follow), ExitStack() as slow:
        return analyse(list(_measured(follow(), work, factor, slow)))


def _measured(events: Iterator[Event], work: Workload, factor: float, slow: ExitStack) -> Iterator[Report]:
    """The reports between the warm-up and the end of the measurement."""
    pids, begun = list[int](), 0.0
    for event in events:
        if event.is_terminal:
            raise MeasurementError(f"the job ended as {event.data}")
        if event.type == "actors":
            pids = worker_pids(event)
        if event.type != "step":
            continue
        metrics = Metrics.model_validate(event.data)
        if not begun and metrics.step >= work.warmup_steps:
            begun = event.time
            if factor > 1:
                slow.enter_context(slowed(pids[-1], factor))
        if begun and event.time > begun + 1:  # what was under way when it became slow is not measured
            yield event.time, metrics
            if event.time > begun + 1 + work.seconds:
                return


def run_rounds(work: Workload, count: int, progress: Progress) -> Rounds:
    """All runs in turn, the clean one and the slow one of an algorithm side by side."""
    rounds: Rounds = []
    task = progress.add_task("", total=2 * count * len(ALGORITHMS))
    for turn in range(count):
        names = list(ALGORITHMS)
        names = names[turn % len(names) :] + names[: turn % len(names)]
        rounds.append({})
        for name in names:
            pair = []
            for factor in (1.0, FACTOR):
                progress.update(task, description=f"round {turn + 1}: {name}{', one slow' if factor > 1 else ''}")
                pair.append(measure(work, ALGORITHMS[name], factor))
                progress.advance(task)
            rounds[-1][name] = (pair[0], pair[1])
    return rounds


def ratio(rounds: Rounds, name: str) -> Spread:
    """Of the slow run's median step to the clean run's, paired."""
    return paired([r[name][1].median_s for r in rounds], [r[name][0].median_s for r in rounds])


def rows(rounds: Rounds) -> list[tuple[str, ...]]:
    """A line an algorithm."""
    found = []
    for name in ALGORITHMS:
        clean, slow = (Spread(tuple(r[name][i].median_s * 1000 for r in rounds)) for i in (0, 1))
        dropped = [Spread(tuple(r[name][i].dropped for r in rounds)).median for i in (0, 1)]
        times = ratio(rounds, name)
        told = f"{times.median:.2f} ({times.low:.2f}..{times.high:.2f})"
        shares = (f"{dropped[0]:.0%}", f"{dropped[1]:.0%}")
        found.append((name, f"{clean.median:.1f}", f"{slow.median:.1f}", told, *shares))
    return found


HEADER = ("algorithm", "clean step, ms", "one slow, ms", "one slow to clean", "dropped, clean", "dropped, one slow")


def markdown(work: Workload, rounds: Rounds, loads: tuple[str, str]) -> str:
    """The whole report."""
    spread = ratio(rounds, "sync, one backup worker")
    settings = {
        "work": f"convnet on {data_title(work.data)}, {work.workers} workers of one thread, minibatch {work.minibatch} "
        "each, 2 shards",
        "slow": f"one worker's process is stopped and continued by turns, so that it runs 1/{FACTOR:g} of the time",
        "measurement": f"{len(rounds)} rounds of {work.seconds:g} s a run after {work.warmup_steps} steps of warm-up; "
        f"medians over the reports, each over about {REPORT_S:g} s; ratios are taken within a round",
        "step": "of K n examples with backup workers, K = 3; of 4 n without",
    }
    return (
        "\n\n".join(
            [
                "# A slow worker in a synchronous run",
                as_bullets({**machine.describe(), "load average before": loads[0], "after": loads[1]}),
                as_bullets(settings),
                as_table(HEADER, rows(rounds)),
                f"{TARGET.name}, {TARGET.kind} {TARGET.bound:g}: {spread.median:.2f}, {TARGET.verdict(spread)}.",
            ]
        )
        + "\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 when something could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stragglers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is measured (default 3)")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of one measurement (default 6)")
    parser.add_argument("--data-root", type=Path, help="a folder with MNIST in torchvision's layout")
    parser.add_argument("--report", action="store_true", help="write the dated report into benchmarks/results")
    options = parser.parse_args(arguments)
    exit_on_sigterm()
    work = Workload(find_data(options.data_root), workers=WORKERS, seconds=options.seconds)
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
        path = report_path("stragglers")
        path.write_text(text)
        raw = [{name: [asdict(steps) for steps in pair] for name, pair in each.items()} for each in rounds]
        path.with_suffix(".json").write_text(json.dumps(raw, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
