"""`python -m benchmarks.steps.start`: from a command to its first step, cold and warm, and what every 100 ms of it did.

Cold starts a Ray; warm attaches to one that has run such a job before, as `--address` does. The profile is taken from
outside: /proc says which process computed in each tenth of a second, and the run's own log when it came how far.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from benchmarks.measurement import machine, proc
from benchmarks.measurement.comparison import VERDICTS, verdict
from benchmarks.measurement.memory import own_service
from benchmarks.measurement.processes import MeasurementError, exit_on_sigterm, free_port
from benchmarks.measurement.report import as_bullets, as_table, report_path
from benchmarks.measurement.statistics import Spread, Target
from benchmarks.measurement.workload import REPOSITORY

COLD, WARM, HELP, LIST = "run, cold", "run on a Ray that is there", "--help", "list"
TARGETS = {
    COLD: Target("from the command to the first step, cold, s", 2.5, "at most"),
    WARM: Target("from the command to the first step, warm, s", 0.5, "at most"),
    HELP: Target("`millrace --help`, s", 0.3, "at most"),
    LIST: Target("`millrace list`, of a service, s", 0.3, "at most"),
}
MARK = "MILLRACE_START_OF"
"""A variable that all processes of one start inherit, also those that are orphans."""
THERE = "the Ray that is there"
"""The mark of its processes, and of all that it starts."""
EVERY_S, SLICE_S, LONGEST_S = 0.02, 0.1, 120.0
LEAST_CPU_S = 0.02
"""Of a process in a slice, for its name to be shown there; the kernel counts in hundredths of a second."""
SPEC = {
    "name": "start", "algorithm": "sync", "workers": 2, "model": "mlp", "optimizer": {"name": "sgd", "lr": 0.01},
    "data": {"name": "digits"}, "epochs": 1, "batch": 32, "report_every_s": 0.05,
}  # fmt: skip
KINDS = (
    ("gcs_server", "Ray's GCS"), ("raylet/raylet", "raylet"), ("runtime_env", "Ray's runtime-env agent"),
    ("dashboard/agent", "Ray's dashboard agent"), ("DashboardAgent", "Ray's dashboard agent"),
    ("dashboard", "Ray's dashboard"), ("monitor.py", "Ray's monitors"), ("log_monitor", "Ray's monitors"),
    ("fork_server.py --serve", "fork server"),
    ("fork_server.py", "asks for a fork"), ("ray::Worker", "worker"),
    ("ray::Coordinator", "coordinator"), ("ray::Evaluator", "evaluator"), ("default_worker", "worker, not yet named"),
    ("deploy.command", "command"), ("deploy.main", "command"), ("millrace", "command"),
)  # fmt: skip
"""What a command line has in it, and what the process is called here; the first that fits."""


@dataclass
class Start:
    """One start, in seconds from its command on."""

    first_step_s: float
    cpu_s: float
    """User and system time of all its processes up to the first step."""
    marks: list[tuple[float, str]] = field(default_factory=list)
    slices: list[dict[str, float]] = field(default_factory=list)
    """CPU seconds by kind of process in each tenth of a second."""


class Sampler:
    """Counts what the processes with any of the marks compute from now on, slice by slice."""

    def __init__(self, *marks: str) -> None:
        self.marks = [f"{MARK}={mark}".encode() for mark in marks]
        self.ours: dict[int, bool] = {}
        self.cpu: dict[int, float] = {}
        self.slices: dict[int, Counter[str]] = defaultdict(Counter)
        self.began = time.time()
        self.look()
        self.slices.clear()  # of what they had computed before

    def look(self) -> None:
        """Add what was computed since the last look to the slice of now."""
        index = int((time.time() - self.began) / SLICE_S)
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            pid = int(entry)
            if not self.ours.get(pid):
                self.ours[pid] = self._is_marked(pid)
            if self.ours[pid]:
                now = proc.cpu_seconds(pid)
                if (more := now - self.cpu.get(pid, 0.0)) > 0:
                    self.slices[index][kind_of(proc.title(pid))] += more
                    self.cpu[pid] = now

    def _is_marked(self, pid: int) -> bool:
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
            return any(mark in environ for mark in self.marks)
        except OSError:
            return False


def kind_of(title: str) -> str:
    """What a process is, by its command line."""
    return next((kind for part, kind in KINDS if part in title), "others")


def start(folder: Path, address: str | None) -> Start:
    """Run the job in a process of its own up to its first step, and then end it.

    Raises:
        MeasurementError: It did not come to a step.
    """
    run_dir, spec, mark = folder / "run", folder / "spec.json", folder.name
    spec.write_text(json.dumps(SPEC))
    command = [sys.executable, "-m", "deploy.command", "run", str(spec), "--run-dir", str(run_dir)]
    command += ["--address", address] if address else []
    with (folder / "out").open("w") as out:
        sampler = Sampler(mark, *([THERE] if address else []))
        env = {**os.environ, MARK: mark, "PYTHONPATH": str(REPOSITORY), "TERM": "dumb"}
        child = subprocess.Popen(command, cwd=folder, env=env, stdout=out, stderr=out)
        try:
            events = _watched(child, run_dir / "events.jsonl", sampler)
        finally:
            child.send_signal(signal.SIGINT)
            try:
                child.wait(30)
            except subprocess.TimeoutExpired:
                child.kill()
    if not events or events[-1]["type"] != "step":
        raise MeasurementError(f"it came to no step: {(folder / 'out').read_text()[-500:]}")
    marks = [(event["time"] - sampler.began, _told(event)) for event in events]
    count = max(sampler.slices, default=-1) + 1
    slices = [dict(sampler.slices[index]) for index in range(count)]
    return Start(marks[-1][0], sum(sum(one.values()) for one in slices), marks, slices)


def _watched(child: "subprocess.Popen[bytes]", log: Path, sampler: Sampler) -> list[dict[str, object]]:
    """The events of a run up to its first step."""
    events: list[dict[str, object]] = []
    while child.poll() is None and time.time() - sampler.began < LONGEST_S:
        sampler.look()
        if log.exists():
            lines = log.read_text().splitlines(keepends=True)
            events = [json.loads(line) for line in lines if line.endswith("\n")]
            for number, event in enumerate(events):
                if event["type"] == "step":
                    return events[: number + 1]
        time.sleep(EVERY_S)
    return events


def _told(event: dict[str, object]) -> str:
    data = event["data"]
    assert isinstance(data, dict)
    what = data.get("state") or data.get("line") or data.get("message") or ""
    return f"{event['type']} {textwrap.shorten(str(what), 60, placeholder='')}".strip()


def timed(arguments: Sequence[str], server: str) -> float:
    """Seconds of a command that only answers.

    Raises:
        MeasurementError: It failed.
    """
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "MILLRACE_SERVER": server}
    began = time.perf_counter()
    command = [sys.executable, "-m", "deploy.command", *arguments]
    found = subprocess.run(command, env=env, capture_output=True, check=False)
    took = time.perf_counter() - began
    if found.returncode:
        raise MeasurementError(found.stderr.decode()[-500:])
    return took


def profile(one: Start) -> str:
    """A line for each tenth of a second: the marks that fell into it, and who computed."""
    rows = []
    for index, computed in enumerate(one.slices):
        begins = index * SLICE_S
        said = "; ".join(what for at, what in one.marks if begins <= at < begins + SLICE_S)
        busy = sorted(computed.items(), key=lambda item: -item[1])
        who = ", ".join(f"{kind} {1000 * cpu:.0f}" for kind, cpu in busy if cpu >= LEAST_CPU_S)
        rows.append((f"{begins:.1f}", f"{1000 * sum(computed.values()):.0f}", who, said.replace("|", "/")))
    return as_table(("s", "CPU ms", "who, ms", "the run's log"), rows)


@contextmanager
def folders() -> Iterator[Path]:
    """A folder for one start."""
    folder = Path(tempfile.mkdtemp(prefix="millrace-start-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(rounds: int, console: Console) -> tuple[dict[str, list[float]], dict[str, list[Start]]]:
    """So many rounds of everything, in turns."""
    seconds: dict[str, list[float]] = defaultdict(list)
    starts: dict[str, list[Start]] = defaultdict(list)
    port = free_port()
    os.environ[MARK] = THERE
    os.environ["PYTHONDONTWRITEBYTECODE"] = ""  # as people have it: nothing is compiled again from the second start on
    with own_service(port) as (_, state):
        server, address = f"http://127.0.0.1:{port}", _address(state)
        with folders() as folder:
            start(folder, address)  # the first has warmed the Ray
        for number in range(rounds):
            for name, arguments in ((HELP, ["--help"]), (LIST, ["list"])):
                seconds[name].append(timed(arguments, server))
            for name, at in ((COLD, None), (WARM, address)):
                with folders() as folder:
                    starts[name].append(start(folder, at))
                seconds[name].append(starts[name][-1].first_step_s)
            console.print(f"round {number + 1}: " + ", ".join(f"{n} {v[-1]:.2f} s" for n, v in seconds.items()))
    return seconds, starts


def _address(state: Path) -> str:
    head = json.loads((state / "cluster.json").read_text())
    return (Path(head["temp_dir"]) / "ray_current_cluster").read_text().strip()


def report(seconds: dict[str, list[float]], starts: dict[str, list[Start]], before: str) -> str:
    """The whole report, Markdown."""
    spreads = {name: Spread(tuple(values)) for name, values in seconds.items()}
    rows = []
    for name, found in starts.items():
        cpu = Spread(tuple(one.cpu_s for one in found))
        rows.append((name, f"{spreads[name].median:.2f}", f"{spreads[name].low:.2f}", f"{cpu.median:.2f}"))
    parts = [
        "# From the command to the first step",
        as_bullets({**machine.describe(), "load average before": before, "after": machine.load()}),
        machine.disturbed(before),
        "One hidden layer on scikit-learn's digits, `sync`, two workers, all as processes of their own. CPU seconds "
        "are those of all processes up to the first step, Ray's too: on two cores no start is shorter than half.",
        as_table(("start", "s, median", "least", "CPU s"), rows),
        "## Against the contract",
        as_table(VERDICTS, [verdict(target, spreads.get(name)) for name, target in TARGETS.items()]),
    ]
    for name, found in starts.items():
        quickest = min(found, key=lambda one: one.first_step_s)
        parts += [f"## Every 100 ms: {name}, the quickest, {quickest.first_step_s:.2f} s", profile(quickest)]
    return "\n\n".join(part for part in parts if part) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 once everything was measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps.start", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="how often everything is started (default 7)")
    parser.add_argument("--report", action="store_true", help="write the dated report into benchmarks/results")
    options = parser.parse_args(arguments)
    exit_on_sigterm()
    console, before = Console(), machine.load()
    text = report(*measure(options.rounds, console), before)
    console.print(text, markup=False)
    if options.report:
        report_path("start").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
