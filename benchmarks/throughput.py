"""`python -m benchmarks.throughput`: Millrace against its peers on this machine, in one run, taking turns."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.measurement import machine, memory, millrace_runs, report
from benchmarks.measurement.contender import Measurement
from benchmarks.measurement.millrace_runs import Ours
from benchmarks.measurement.processes import MeasurementError, exit_on_sigterm
from benchmarks.measurement.results import (
    BARE,
    DDP,
    DDP_OURS,
    DOWNPOUR,
    LIMIT,
    LIMIT_OURS,
    RAY_ASYNC,
    RAY_SYNC,
    RAY_TUNED,
    SYNC,
    Results,
)
from benchmarks.measurement.workload import LARGEST_RATE, Workload, data_title, find_data
from benchmarks.peers import bare_loop, ddp, limit, ray_pattern
from benchmarks.peers.ddp import DdpConfig
from benchmarks.peers.ray_pattern import RayConfig

Contender = Callable[[Workload], Measurement]
OURS = {SYNC: Ours("sync"), DOWNPOUR: Ours("downpour")}
MORE = {
    "Millrace downpour 4/4, staleness 8": Ours("downpour", num_push=4, num_fetch=4, max_staleness=8),
    "Millrace downpour 1/1, any staleness": Ours("downpour", max_staleness=None),
    "Millrace downpour 1/1, staleness 1, 1 shard": Ours("downpour", shards=1),
}
TUNING_ROUNDS, TUNING_S = 2, 3.0


class Bench:
    """One run: what is measured, the progress bar, and what came out."""

    def __init__(self, work: Workload, results: Results, progress: Progress) -> None:
        self.work, self.results, self.progress = work, results, progress
        self.ddp, self.ray_tuned = DdpConfig(), RayConfig("async", tuned=True)

    def tune(self) -> None:
        """Find the peers' best configurations, briefly."""
        short = replace(self.work, seconds=TUNING_S)
        tried: dict[str, Contender] = {f"DDP, {c.title}": partial(ddp.measure, config=c) for c in ddp.CANDIDATES}
        forms = [RayConfig("async", tuned=True, flat=flat) for flat in (True, False)]
        tried |= {f"Ray {c.mode}, {c.title}": partial(ray_pattern.measure, config=c) for c in forms}
        task = self.progress.add_task("peers' configurations", total=TUNING_ROUNDS * len(tried))
        for _ in range(TUNING_ROUNDS):
            for title, contender in tried.items():
                self.results.tried.setdefault(title, []).append(contender(short).examples_per_s)
                self.progress.advance(task)
        best = {title: max(rates) for title, rates in self.results.tried.items()}
        self.ddp = max(ddp.CANDIDATES, key=lambda c: best[f"DDP, {c.title}"])
        self.ray_tuned = max(forms, key=lambda c: best[f"Ray {c.mode}, {c.title}"])

    def contenders(self, more: bool) -> dict[str, Contender]:
        """By name, the limit first: its rate sizes our jobs."""
        chosen: dict[str, Contender] = {
            LIMIT: limit.measure,
            LIMIT_OURS: lambda work: limit.measure(replace(work, our_products=True)),
            DDP: partial(ddp.measure, config=self.ddp),
            DDP_OURS: lambda work: ddp.measure(replace(work, our_products=True), self.ddp),
            RAY_SYNC: partial(ray_pattern.measure, config=RayConfig("sync")),
            RAY_ASYNC: partial(ray_pattern.measure, config=RayConfig("async")),
            RAY_TUNED: partial(ray_pattern.measure, config=self.ray_tuned),
        }
        for name, ours in OURS.items():
            chosen[name] = partial(self._ours, ours=ours)
            chosen[BARE[name]] = partial(self._bare, ours=ours)
        return chosen | ({name: partial(self._ours, ours=ours) for name, ours in MORE.items()} if more else {})

    def round(self, contenders: dict[str, Contender], turn: int) -> None:
        """Everyone once; each round begins with another contender, so that none always follows the same one."""
        names = list(contenders)
        first = turn * 3 % len(names)
        self.results.rounds.append({})
        task = self.progress.add_task(f"round {turn + 1}", total=len(names))
        for name in names[first:] + names[:first]:
            self.progress.update(task, description=f"round {turn + 1}: {name}")
            self._measure(name, contenders[name])
            self.progress.advance(task)

    def memories(self, service_pid: int | None) -> None:
        """What a run adds to its node, for each algorithm of ours, and the service's memory."""
        task = self.progress.add_task("memory", total=len(OURS) + 1)
        for name, ours in OURS.items():
            if name not in self.results.failures:
                with self._noting(f"memory of {name}"):
                    self.results.memory[name] = memory.run_memory(self.work, ours)
            self.progress.advance(task)
        with self._noting("memory of the service's process"):
            pid = service_pid
            self.results.service = memory.service_memory(pid) if pid else memory.own_service_memory()
        self.progress.advance(task)

    def _measure(self, name: str, contender: Contender) -> None:
        """A contender that fails is left out from then on, and the report says why."""
        if name not in self.results.failures:
            with self._noting(name):
                self.results.rounds[-1][name] = contender(self.work)

    @contextmanager
    def _noting(self, name: str) -> Iterator[None]:
        try:
            yield
        except MeasurementError as error:
            self.results.failures[name] = str(error).strip().splitlines()[-1]
            self.progress.console.print(f"{name}: {error}", style="red", markup=False)

    def _expected(self) -> float:
        rate = self.results.rate(LIMIT_OURS)
        return rate.median if rate else LARGEST_RATE

    def _ours(self, work: Workload, ours: Ours) -> Measurement:
        return millrace_runs.measure(work, ours, self._expected())

    def _bare(self, work: Workload, ours: Ours) -> Measurement:
        return bare_loop.measure(work, ours, self._expected())


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 when something could not be measured."""
    options = _parser().parse_args(arguments)
    exit_on_sigterm()
    work = Workload(find_data(options.data_root), seconds=options.seconds)
    console = Console()
    results = Results(machine.describe(), {}, load_before=machine.load())
    if os.getloadavg()[0] > 0.5:
        console.print(f"The machine is not idle (load average {results.load_before}); figures will suffer.")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console) as progress:
            _run(Bench(work, results, progress), options)
    except KeyboardInterrupt:
        console.print("Stopped; every process that was started has been ended.")
        return 130
    results.load_after = machine.load()
    report.print_tables(results, console)
    if options.report:
        console.print(f"written: {report.write(results).name}, with its JSON")
    return 1 if results.failures else 0


def _run(bench: Bench, options: argparse.Namespace) -> None:
    if not options.no_tune:
        bench.tune()
    bench.results.settings = _settings(bench)
    contenders = {name: c for name, c in bench.contenders(options.more).items() if options.only in name}
    for turn in range(options.rounds):
        bench.round(contenders, turn)
    if not options.only:
        bench.memories(options.service_pid)


def _settings(bench: Bench) -> dict[str, str]:
    work = bench.work
    return {
        "model": "convnet on 1x28x28, 4.3 M parameters, channels_last for everyone; float32, no compression",
        "data": f"{data_title(work.data)}, minibatches indexed as uint8 and normalised",
        "work": f"{work.workers} workers of one thread, minibatch {work.minibatch} each, "
        f"momentum SGD (lr {work.lr:g}, momentum {work.momentum:g})",
        "measurement": f"about {work.seconds:g} s after {work.warmup_steps} steps of warm-up",
        "limit": "torch.optim.SGD(fused=True), the default autograd",
        "products": "peers multiply as torch does by itself (MKL), Millrace's workers through oneDNN where a layer is "
        "large; the two rows with Millrace's products show what of a ratio that explains",
        "DDP": f"gloo, gradient_as_bucket_view, {bench.ddp.title}",
        "Ray's pattern": "as documented: a state_dict to the workers, an array a variable back, torch.optim.SGD; "
        f"beside it {bench.ray_tuned.title}, the fused optimiser and a small, warm store; one thread an actor",
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.throughput", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often everyone is measured (default 5)")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of one measurement (default 8)")
    parser.add_argument("--data-root", type=Path, help="a folder with MNIST in torchvision's layout")
    parser.add_argument("--only", default="", metavar="TEXT", help="only contenders with this in their name")
    parser.add_argument("--more", action="store_true", help="also other settings of downpour")
    parser.add_argument("--no-tune", action="store_true", help="take the peers' usual best, search no better")
    parser.add_argument("--report", action="store_true", help="write the dated report into benchmarks/results")
    parser.add_argument(
        "--service-pid", type=int, help="a running service whose memory is reported; else one is started"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
