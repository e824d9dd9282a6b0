"""What the commands do, once their arguments are read."""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from api.cli import BAD_INPUT, FAILED, INTERRUPTED, OK, Doors
from api.client import Client, Refused, Unreachable
from api.display import Display, display, duration
from api.interruptible import interruptible
from service import (
    ClusterInfo,
    JobSpec,
    JobSummary,
    JobView,
    LocalRun,
    LocalSweep,
    MillraceError,
    Result,
    SpecInvalid,
    State,
    log_line,
    new_job_id,
    read_spec_file,
)

MENDABLE = frozenset({401, 403, 404, 409, 413, 415, 422, 429})
"""Statuses of what the caller can mend."""
STOPPING = b"Stopping cleanly, with a checkpoint. Once more ends it at once.\n"


@dataclass(frozen=True)
class RunRequest:
    """`millrace run` with its options."""

    spec_file: Path
    sets: list[str]
    address: str | None
    run_dir: Path | None
    num_cpus: int | None
    as_json: bool


class Interrupts:
    """The first Ctrl-C or SIGTERM cancels the run cleanly; the second, or one before there is a run, ends it."""

    def __init__(self) -> None:
        self.run: LocalRun | LocalSweep | None = None
        self.show: Display | None = None
        self.before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self.install()
        return self

    def install(self) -> None:
        """Take the signals; Ray takes SIGTERM when it starts, so once more after that."""
        for number in (signal.SIGINT, signal.SIGTERM):
            previous = signal.signal(number, self._handle)
            self.before.setdefault(number, previous)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self.run is None or self.run.cancelling:
            raise KeyboardInterrupt
        self.run.cancel()
        os.write(2, STOPPING)  # a print that this signal interrupted cannot be entered again


def read(spec_file: Path, sets: list[str]) -> JobSpec:
    """The spec, or exit status 2 with one line a field."""
    try:
        return read_spec_file(spec_file, sets).resolved(Path.cwd())
    except SpecInvalid as error:
        raise refused(error, f"{spec_file}: ") from None


def refused(error: SpecInvalid, where: str = "") -> typer.Exit:
    """Exit status 2, with one line a field."""
    for item in error.errors:
        complain(f"{where}{item.pointer or '/'}: {item.message}")
    return typer.Exit(BAD_INPUT)


def run_here(doors: Doors, request: RunRequest) -> int:
    """Train one job on a Ray of its own, or on an existing one. Returns the exit status."""
    spec = read(request.spec_file, request.sets)
    job_id = new_job_id()
    run_dir = (request.run_dir or doors.runs_dir / job_id).absolute()
    if (run_dir / "events.jsonl").exists():
        complain(f"{run_dir} holds a run already; choose another --run-dir")
        return BAD_INPUT
    runs = doors.runs()
    needs = runs.needs(spec.train)
    try:
        with Interrupts() as interrupts, doors.cluster(request.address, needs, request.num_cpus) as info:
            total = runs.total_resources()
            if not needs.fits(total):
                told = f"{needs.cpus:g} CPUs and {needs.gpus:g} GPUs at once, Ray has {total.cpus:g} and {total.gpus:g}"
                complain(f"{request.spec_file}: /workers: the job needs {told}")
                return BAD_INPUT
            interrupts.install()
            result = _train(LocalRun(runs, job_id, spec, run_dir), interrupts, info, request.as_json)
    except KeyboardInterrupt:
        complain("Ended before it started.")
        return FAILED
    except MillraceError as error:
        complain(str(error))
        return FAILED
    _print_result(result, request.as_json, f"Everything is in {run_dir}")
    return OK if result.state is State.SUCCEEDED else FAILED


def _train(run: LocalRun, interrupts: Interrupts, info: ClusterInfo, as_json: bool) -> Result:
    with display(sys.stderr if as_json else sys.stdout, run.spec.epochs) as shown:
        shown.say(f"Job {run.job_id}: {run.spec.name}")
        if info.dashboard_url:
            shown.say(f"Ray dashboard: {info.dashboard_url}  (if it asks for a token: `ray get-auth-token`)")
        interrupts.run = run
        try:
            return run.run(shown.show)
        except (KeyboardInterrupt, MillraceError):  # the log tells which
            return run.result


def client_of(doors: Doors, server: str | None) -> Client:
    """A client of the service at a URL, or of ours; our token is shown to ours and to no other."""
    url = server or doors.server
    return Client(url, token=doors.token if url.rstrip("/") == doors.server.rstrip("/") else "")


@contextlib.contextmanager
def asking(doors: Doors, server: str | None, what: str | None = None) -> Iterator[Client]:
    """A client whose errors become an exit status: 2 for what the caller can mend, 1 for the rest."""
    with client_of(doors, server) as client:
        try:
            yield client
        except Refused as error:
            problem = error.problem
            told = [f"{item.pointer or '/'}: {item.message}" for item in problem.errors] or [problem.detail]
            for line in told:
                complain(f"{what}: {line}" if what else line)
            if problem.status in (401, 403):
                complain(problem.remedy)
            raise typer.Exit(BAD_INPUT if problem.status in MENDABLE else FAILED) from None
        except Unreachable as error:
            complain(str(error))
            raise typer.Exit(FAILED) from None


def watch_job(client: Client, job_id: str, as_json: bool) -> int:
    """Follow a job to its end. Returns the exit status."""
    job = client.get(job_id)
    try:
        with display(sys.stderr if as_json else sys.stdout, job.spec.epochs) as shown:
            for event in interruptible(client.events(job_id)):
                shown.show(event)
    except KeyboardInterrupt:
        complain(f"Detached; the job goes on. `millrace watch {job_id}` follows it again.")
        return INTERRUPTED
    job = client.get(job_id)
    _print_result(job.result, as_json, f"Everything is in {job.run_dir}")
    return OK if job.state is State.SUCCEEDED else FAILED


def print_logs(client: Client, job_id: str, follow: bool, as_json: bool) -> int:
    """Print a job's log, as far as it goes or to its end; as JSON all its events, one a line."""
    if not follow and not as_json:
        typer.echo(client.logs(job_id), nl=False)
        return OK
    try:
        for event in interruptible(client.events(job_id)) if follow else client.events_so_far(job_id):
            if as_json:
                typer.echo(event.model_dump_json())
            elif (line := log_line(event)) is not None:
                typer.echo(line)
    except KeyboardInterrupt:
        complain("Detached; the job goes on.")
        return INTERRUPTED
    return OK


def print_list(client: Client, wanted: tuple[list[str], list[str], int], as_json: bool) -> None:
    """A table of jobs, or one JSON object."""
    states, labels, limit = wanted
    found = client.list(known_states(states), tuple(labels))
    jobs = [job for job, _ in zip(found, range(limit), strict=False)]
    if as_json:
        typer.echo(json.dumps({"jobs": [job.model_dump(mode="json") for job in jobs]}))
        return
    Console().print(job_table(jobs))


def known_states(states: list[str]) -> tuple[State, ...]:
    """States by their names, in letters of any size; or exit status 2."""
    unknown = [state for state in states if state.upper() not in State.__members__]
    if unknown:
        complain(f"there is no state {unknown[0]!r}; use one of {', '.join(State)}")
        raise typer.Exit(BAD_INPUT)
    return tuple(State(state.upper()) for state in states)


def job_table(jobs: Sequence[JobSummary]) -> Table:
    """A line a job."""
    table = Table("job", "name", "algorithm", "state", "progress", "left", "message", box=None)
    for job in jobs:
        left = "" if job.eta_s is None else duration(job.eta_s)
        cells = (job.id, job.name, job.algorithm, job.state, f"{job.progress:.0%}", left, job.message)
        table.add_row(*(Text(cell) for cell in cells))
    return table


def print_job(job: JobView, as_json: bool, sentence: str | None = None) -> None:
    """One job in full, or in a sentence, or as one JSON object that begins with its result."""
    if as_json:
        view = job.model_dump(mode="json", exclude={"result", "id", "workers"})
        typer.echo(json.dumps({**job.result.model_dump(mode="json"), **view}))
        return
    if sentence is not None:
        typer.echo(sentence)
        return
    table = Table(box=None, show_header=False)
    rows = {
        "job": job.id,
        "name": job.name,
        "labels": ", ".join(f"{key}={value}" for key, value in job.labels.items()),
        "state": f"{job.state} ({job.reason}) {job.message}",
        "progress": f"{job.progress:.0%}" + ("" if job.eta_s is None else f", {duration(job.eta_s)} left"),
        "workers": str(job.workers),
        "training": _sentence(job.result),
        "run directory": job.run_dir,
    }
    if job.storage:
        rows["copy"] = job.storage
    for name, value in rows.items():
        table.add_row(Text(name, style="bold"), Text(value))
    Console().print(table)


def _print_result(result: Result, as_json: bool, where: str) -> None:
    if as_json:
        typer.echo(result.model_dump_json())
        return
    typer.echo(f"{result.state}: {_sentence(result)}" + (f" ({result.message})" if result.message else ""))
    typer.echo(where)


def _sentence(result: Result) -> str:
    parts = [f"{result.epochs:g} epochs", f"{result.examples:,} examples in {duration(result.wall_s)}"]
    if result.examples_per_s:
        parts.append(f"{result.examples_per_s:,.0f} a second")
    for name, value in (("train loss", result.train_loss), ("test loss", result.test_loss)):
        if value is not None:
            parts.append(f"{name} {value:.4f}")
    if result.test_accuracy is not None:
        parts.append(f"test accuracy {result.test_accuracy:.4f}")
    return ", ".join(parts)


def complain(line: str) -> None:
    typer.echo(line, err=True)
