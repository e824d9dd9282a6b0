"""`python -m benchmarks.page`: how soon the page draws many long runs, and what the service's process then holds.

The service runs as a process of its own over finished runs whose logs are written here: no Ray, no training.
"""

import argparse
import asyncio
import json
import math
import multiprocessing
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from rich.console import Console

from benchmarks.measurement import machine, proc
from benchmarks.measurement.processes import MeasurementError, exit_on_sigterm
from benchmarks.measurement.report import as_bullets, as_table, report_path
from benchmarks.measurement.statistics import Spread, Target
from service import ClusterInfo, JobSpec, ManagerConfig, Resources, State, Store, SweepManager, build_manager
from service.status import Status
from trainers import TrainSpec

EPOCHS = 90
START_WITHIN_S = 60.0
FIRST_PLOT = """() => new Promise((resolve) => new PerformanceObserver((list) => {
    const mark = list.getEntriesByName('first plot')[0];
    if (mark) requestAnimationFrame(() => resolve(mark.startTime));
}).observe({ type: 'mark', buffered: true }))"""
"""Milliseconds from the navigation until the curves were drawn."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FIRST = Target("first plot of all runs, s", 1.0, "at most")
MEMORY = Target("service after it, MiB (PSS)", 250.0, "at most")


class Round(NamedTuple):
    """One visit with an empty cache."""

    first_plot_s: float
    """From the navigation to the first frame that shows the curves."""
    memory_mib: float
    """Of the service's process afterwards, proportional."""


def step(number: int, steps: int, dice: random.Random) -> dict[str, Any]:
    """The data of a report, as long as a real one."""
    epoch = EPOCHS * number / steps
    return {
        "step": number, "epoch": epoch, "examples": number * 256, "examples_per_s": dice.gauss(9000, 200),
        "loss": 0.1 + 2.2 * math.exp(-epoch / 20) * dice.uniform(0.9, 1.1), "learning_rate": 0.1, "wait_data_s": 0.01,
        "wait_communication_s": 0.2, "compute_s": 0.8, "sent_bytes": 1 << 20, "received_bytes": 1 << 20,
        "pushed_bytes": 0, "fetched_bytes": 0, "shuffled_bytes": 0, "workers": 4, "staleness": {"0": number},
        "group_staleness": [], "backprop_delays": [], "dropped": 0,
    }  # fmt: skip


def write_log(run_dir: Path, steps: int, seed: int) -> None:
    """The log of a run that has ended."""
    dice, begin = random.Random(seed), time.time() - steps
    events = [("state", {"state": "RUNNING", "reason": "Training", "message": "4 workers train"})]
    events += [("step", step(i, steps, dice)) for i in range(1, steps + 1)]
    events += [("state", {"state": "SUCCEEDED", "reason": "Completed", "message": "trained to the end"})]
    with (run_dir / "events.jsonl").open("w") as file:
        for seq, (kind, data) in enumerate(events, 1):
            event = {"seq": seq, "time": begin + seq, "type": kind, "data": data}
            file.write(json.dumps(event, separators=(",", ":")) + "\n")


async def write_runs(folder: Path, runs: int, steps: int) -> list[str]:
    """A state directory with finished jobs. Returns their ids."""
    store = Store.open(f"sqlite:///{folder / 'millrace.db'}")
    manager = build_manager(store, FullCluster(), ManagerConfig(folder / "runs", folder))
    ids = []
    for seed in range(runs):
        job, _ = await manager.submit(JobSpec(seed=seed))
        write_log(Path(job.run_dir), steps, seed)
        manager.series.keep(Path(job.run_dir))
        store.finish(job.id, Status(State.SUCCEEDED, "Completed", "trained to the end"), time.time(), {})
        ids.append(job.id)
    store.close()
    return ids


def serve(folder: Path, told: Connection) -> None:
    """The service over these runs, in this process, for ever."""
    from api import AppConfig, Server, Streams, bind, create_app

    store = Store.open(f"sqlite:///{folder / 'millrace.db'}")
    manager = build_manager(store, FullCluster(), ManagerConfig(folder / "runs", folder))
    streams = Streams()
    info = ClusterInfo(address="127.0.0.1:6379", dashboard_url="")
    sweeps = SweepManager(manager, folder / "sweeps", folder)
    server = Server(create_app(manager, sweeps, info, AppConfig(streams)), streams)
    listening = bind("127.0.0.1", 0)
    told.send("http://{}:{}".format(*listening.getsockname()))
    asyncio.run(server.serve([listening]))


class FullCluster:
    """A cluster that takes jobs in, and on which nothing starts."""

    def needs(self, spec: TrainSpec) -> Resources:
        """As on Ray."""
        return Resources(cpus=spec.workers.count, gpus=0)

    def total_resources(self) -> Resources:
        """Enough for any job."""
        return Resources(cpus=1000, gpus=0)

    def available_resources(self) -> Resources:
        """Nothing."""
        return Resources(cpus=0, gpus=0)

    def find_run(self, job_id: str) -> None:
        """There is none."""

    def cleanup_run(self, job_id: str) -> None:
        """Nothing is left of it."""

    def preflight(self, spec: TrainSpec, is_wanted: Callable[[], bool]) -> None:
        """All is well."""

    def start_run(self, job_id: str, spec: TrainSpec, run_dir: Path) -> NoReturn:
        """Never called."""
        raise NotImplementedError


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, int]]:
    """Address and process id of a service over these runs."""
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=serve, args=(folder, send), daemon=True)
    process.start()
    try:
        if not receive.poll(START_WITHIN_S):
            raise MeasurementError("the service does not start")
        assert process.pid is not None
        yield receive.recv(), process.pid
    finally:
        process.terminate()
        process.join(10)
        process.kill()


def visit(browser: Any, url: str, ids: Sequence[str], pid: int) -> Round:
    """Open the overlay of all runs in a new profile."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    try:
        page = context.new_page()
        page.goto(f"{url}/#/compare?jobs={','.join(ids)}")
        shown_ms = page.evaluate(FIRST_PLOT)
        return Round(shown_ms / 1000, proc.memory_bytes(pid)["Pss"] / 2**20)
    finally:
        context.close()


def measure(folder: Path, ids: Sequence[str], rounds: int) -> list[Round]:
    """The first visit, to a service that has just started, and those after it."""
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        raise MeasurementError("needs Chromium: the Debian package `chromium`")
    with serving(folder) as (url, pid), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            return [visit(browser, url, ids, pid) for _ in range(rounds)]
        finally:
            browser.close()


def markdown(runs: int, steps: int, rounds: Sequence[Round], loads: tuple[str, str]) -> str:
    """The whole report."""
    after, memory = Spread(tuple(r.first_plot_s for r in rounds[1:])), Spread(tuple(r.memory_mib for r in rounds))
    rows = [(str(i), f"{r.first_plot_s:.2f}", f"{r.memory_mib:.0f}") for i, r in enumerate(rounds, 1)]
    said = [
        f"{target.name}, {target.kind} {target.bound:g}: {spread.median:.3g}, {target.verdict(spread)}."
        for target, spread in ((FIRST, after), (MEMORY, memory))
    ]
    about = {
        "work": f"{runs} finished runs of {steps:,} reports each, their training loss overlaid in one chart",
        "measurement": "headless Chromium with an empty cache, on the same machine; from the navigation until the "
        "chart is drawn; the first visit is to a service that has just started, and does not count",
        "runs": "their logs, and beside them the columns that a service leaves when a run ends",
    }
    parts = ["# The page's first plot", as_bullets({**machine.describe(), "load average": " -> ".join(loads)})]
    parts += [as_bullets(about), as_table(("visit", "first plot, s", "service, MiB"), rows), *said]
    return "\n\n".join(filter(None, [*parts, machine.disturbed(loads[0])])) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 when something could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="how many are overlaid (default 200)")
    parser.add_argument("--steps", type=int, default=10_000, help="reports a run (default 10,000)")
    parser.add_argument("--rounds", type=int, default=6, help="visits, the first of which warms up (default 6)")
    parser.add_argument("--report", action="store_true", help="write the dated report into benchmarks/results")
    options = parser.parse_args(arguments)
    exit_on_sigterm()
    console, before = Console(), machine.load()
    with tempfile.TemporaryDirectory(prefix="millrace-page-") as folder:
        ids = asyncio.run(write_runs(Path(folder), options.runs, options.steps))
        try:
            rounds = measure(Path(folder), ids, options.rounds)
        except MeasurementError as error:
            console.print(str(error), style="red", markup=False)
            return 1
    text = markdown(options.runs, options.steps, rounds, (before, machine.load()))
    console.print(text, markup=False)
    if options.report:
        report_path("page").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
