"""What the commands about sweeps do, once their arguments are read."""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from api.cli.actions.run import RunRequest
from api.cli.actions.specs import as_exit, has_code, known_states, read_sweep
from api.cli.connection import complain, connected
from api.cli.context import BAD_INPUT, FAILED, INTERRUPTED, OK, CliContext
from api.cli.display import duration, id_column, wide_console
from api.cli.interruptible import interruptible
from api.cli.interrupts import Interrupts
from api.client.client import Client
from service import (
    Event,
    LocalSweep,
    MillraceError,
    NeverFits,
    SpecInvalid,
    State,
    SweepSpec,
    SweepSummary,
    SweepView,
    TrialStore,
    check_fits,
    configurations,
    log_line,
    new_sweep_id,
    report_answer,
    report_figures,
    report_of,
    report_text,
    trial_needs,
    yaml_value,
)

LINE_EVERY_S = 5.0


class SweepLines:
    """A sweep for people: a line for each trial that ends, and how far the whole is."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.printed_s = 0.0

    def show(self, event: Event) -> None:
        """Print what is worth a line."""
        data = event.data
        if event.type == "trial" and data["state"] not in ("QUEUED", "RUNNING"):
            settings = ", ".join(f"{axis} {value}" for axis, value in data["settings"].items())
            value = data.get("value", data["error"])  # logs that are older than tasks have the error alone
            error = "" if value is None else f"  median {data.get('metric', 'error')} {value:.4f}"
            why = "" if data["state"] == "SUCCEEDED" else f"  {data['message']}"
            self.say(f"trial {data['number']} {data['state']}  {settings}{error}{why}")
        elif event.type == "progress" and time.monotonic() - self.printed_s >= LINE_EVERY_S:
            self.printed_s = time.monotonic()
            left = "" if data["eta_s"] is None else f", {duration(data['eta_s'])} left"
            ended = data["total"] - data["queued"] - data["running"]
            self.say(f"{data['progress']:.0%}  {ended} of {data['total']} trials, {data['running']} running{left}")
        elif (line := log_line(event)) is not None:
            self.say(line)

    def say(self, line: str) -> None:
        """Print a line at once, also into a pipe."""
        print(line, file=self.stream, flush=True)


def check_sweep(request: RunRequest) -> None:
    """Print the spec in full and how many trials it comes to."""
    spec = read_sweep(request.spec_file, request.sets)
    found = {"trials": _count(spec), "spec": spec.model_dump(mode="json")}
    typer.echo(json.dumps(found, indent=None if request.as_json else 2))


def _count(spec: SweepSpec) -> int:
    """Of its trials, once all are known to do."""
    found = len(configurations(spec))
    return spec.most_trials or found


def submit_sweep(context: CliContext, server: str, request: RunRequest) -> None:
    """Give it to a service."""
    spec = read_sweep(request.spec_file, request.sets)
    with connected(context, server, str(request.spec_file)) as client:
        print_sweep_state(client.sweep(spec), request.as_json)


def sweep_here(context: CliContext, request: RunRequest) -> int:
    """Run a sweep on a Ray of its own, or on an existing one. Returns the exit status."""
    spec = read_sweep(request.spec_file, request.sets)
    if not has_code(request.spec_file, spec.job.code, "/job/code"):
        return BAD_INPUT
    folder = (request.folder or context.runs_dir / new_sweep_id()).absolute()
    lines = SweepLines(sys.stderr if request.as_json else sys.stdout)
    try:
        with Interrupts() as interrupts, context.cluster(request.address, trial_needs(spec), request.num_cpus) as info:
            growth = context.growth(request.address)
            check_fits(spec, context.runs().total_resources(), growth)
            interrupts.install()
            found = LocalSweep.open(spec, folder, growth)
            interrupts.run = found
            lines.say(f"Sweep {found.store.get('id')}: {spec.name}, {len(found.store.trials())} trials, in {folder}")
            if info.dashboard_url:
                lines.say(f"Ray dashboard: {info.dashboard_url}  (if it asks for a token: `ray get-auth-token`)")
            done = found.run(lines.show)
    except SpecInvalid as error:
        raise as_exit(error, request.spec_file) from None
    except NeverFits as error:
        complain(f"{request.spec_file}: /job/workers: {error}")
        return BAD_INPUT
    except KeyboardInterrupt:
        complain(f"Ended. `millrace sweep {request.spec_file} --sweep-dir {folder}` goes on with it.")
        return FAILED
    except MillraceError as error:
        complain(str(error))
        return FAILED
    _print_done(done, TrialStore(folder), request.as_json)
    return OK if done.state is State.SUCCEEDED else FAILED


def watch_sweep(client: Client, sweep_id: str, as_json: bool) -> int:
    """Follow a sweep to its end. Returns the exit status."""
    lines = SweepLines(sys.stderr if as_json else sys.stdout)
    try:
        for event in interruptible(client.sweep_events(sweep_id)):
            lines.show(event)
    except KeyboardInterrupt:
        complain(f"Detached; the sweep goes on. `millrace watch {sweep_id}` follows it again.")
        return INTERRUPTED
    done = client.get_sweep(sweep_id)
    print_sweep(done, as_json)
    return OK if done.state is State.SUCCEEDED else FAILED


def print_sweep(sweep: SweepView, as_json: bool) -> None:
    """A sweep in full: a table of its trials, or one JSON object."""
    if as_json:
        typer.echo(sweep.model_dump_json())
        return
    typer.echo(_sentence(sweep))
    said = {"labels": ", ".join(f"{key}={value}" for key, value in sweep.labels.items()), "notes": sweep.notes}
    for name, value in said.items():
        if value:
            typer.echo(f"{name}: {value}")
    axes = list(sweep.spec.axes)
    ids = id_column("job", (trial.id for trial in sweep.results))
    table = Table("trial", ids, *axes, "state", "progress", sweep.metric.heading, "message", box=None)
    for trial in sweep.results:
        error = "" if trial.value is None else f"{trial.value:.4f}"
        values = [str(trial.settings.get(axis, "")) for axis in axes]
        cells = (str(trial.number), trial.id, *values, trial.state, f"{trial.progress:.0%}", error, trial.message)
        table.add_row(*(Text(cell) for cell in cells))
    wide_console().print(table)


@dataclass(frozen=True)
class SweepsWanted:
    """Which sweeps to list, and how many at most."""

    states: list[str]
    labels: list[str]
    archived: bool
    project: str | None
    limit: int


def print_sweeps(client: Client, wanted: SweepsWanted, as_json: bool) -> None:
    """A table of sweeps, or one JSON object."""
    states, labels = known_states(wanted.states), tuple(wanted.labels)
    found = list(islice(client.sweeps(states, labels, wanted.archived, wanted.project), wanted.limit))
    if as_json:
        typer.echo(json.dumps({"sweeps": [one.model_dump(mode="json") for one in found]}))
        return
    ids = id_column("sweep", (one.id for one in found))
    table = Table(ids, "name", "state", "trials", "progress", "left", "message", box=None)
    for one in found:
        left = "" if one.eta_s is None else duration(one.eta_s)
        cells = (one.id, one.name, one.state, str(one.trials["total"]), f"{one.progress:.0%}", left, one.message)
        table.add_row(*(Text(cell) for cell in cells))
    Console().print(table)


def print_sweep_state(sweep: SweepView, as_json: bool) -> None:
    """What has become of it, in a sentence or as one JSON object."""
    typer.echo(sweep.model_dump_json() if as_json else f"{_sentence(sweep)}; `millrace watch {sweep.id}` follows it")


def print_report(context: CliContext, server: str | None, sweep: str, out: Path | None, as_json: bool) -> None:
    """The report of a sweep of a service, or of one in a folder; with `out` its files too."""
    store = TrialStore(Path(sweep))
    if store.exists:
        files = _wanted(report_files(store), out)
    elif sweep.startswith("sweep-"):
        with connected(context, server) as client:
            files = _wanted(client.report_files(sweep), out)
    else:
        complain(f"{sweep} is neither a sweep's folder nor the id of one")
        raise typer.Exit(BAD_INPUT)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (out / name).write_bytes(data)
    typer.echo(files["report.json" if as_json else "report.md"].decode().rstrip())


def report_files(store: TrialStore) -> Iterator[tuple[str, bytes]]:
    """Report and figures of a sweep in a folder: names and files, `report.json` and `report.md` first."""
    report, found = report_of(store)
    yield "report.json", report.model_dump_json().encode()
    yield "report.md", report_text(report).encode()
    yield from report_figures(report, found)


def _wanted(files: Iterator[tuple[str, bytes]], out: Path | None) -> dict[str, bytes]:
    """The report alone where it is only printed: to draw its figures takes seconds."""
    return dict(files if out is not None else islice(files, 2))


def added(values: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Axes and limits from `axis=[values]` and `limits.name=value`."""
    axes: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    for one in values:
        name, equals, text = one.partition("=")
        if not equals:
            complain(f"{one!r} is not of the form axis=[value, value]")
            raise typer.Exit(BAD_INPUT)
        try:
            value = yaml_value(text)
        except SpecInvalid as error:
            complain(f"{name}: {error}")
            raise typer.Exit(BAD_INPUT) from None
        if name.startswith("limits."):
            limits[name.removeprefix("limits.")] = value
        else:
            axes[name] = value if isinstance(value, list) else [value]
    return axes, limits


def _print_done(done: SweepView, store: TrialStore, as_json: bool) -> None:
    """The end, and what it says; as one JSON object the sweep with its report."""
    report, _ = report_of(store)
    if as_json:
        whole = done.model_dump(mode="json") | {"report": json.loads(report.model_dump_json())}
        typer.echo(json.dumps(whole))
        return
    typer.echo(_sentence(done))
    for line in report_answer(report):
        typer.echo(line)
    typer.echo(f"`millrace report {store.folder}` prints the whole report; --out writes its figures too")


def _sentence(sweep: SweepSummary) -> str:
    left = "" if sweep.eta_s is None else f", {duration(sweep.eta_s)} left"
    return f"Sweep {sweep.id} ({sweep.name}) is {sweep.state}: {sweep.message} ({sweep.progress:.0%}{left})"
