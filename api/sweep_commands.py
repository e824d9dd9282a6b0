"""What the commands about sweeps do, once their arguments are read."""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from api.cli import BAD_INPUT, FAILED, INTERRUPTED, OK, Doors
from api.client import Client
from api.commands import Interrupts, asking, complain
from api.display import duration
from api.interruptible import interruptible
from service import (
    Event,
    Ledger,
    LocalSweep,
    MillraceError,
    NeverFits,
    SpecInvalid,
    State,
    SweepSpec,
    SweepSummary,
    SweepView,
    check_fits,
    configurations,
    evidence,
    load_yaml,
    log_line,
    markdown,
    new_sweep_id,
    read_sweep_file,
    scaling_report,
    trial_needs,
)

LINE_EVERY_S = 5.0


@dataclass(frozen=True)
class SweepRequest:
    """`millrace sweep` with its options."""

    spec_file: Path
    sets: list[str]
    address: str | None
    sweep_dir: Path | None
    num_cpus: int | None
    as_json: bool


class SweepLines:
    """A sweep for people: a line for each trial that ends, and how far the whole is."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.told_s = 0.0

    def show(self, event: Event) -> None:
        """Print what is worth a line."""
        data = event.data
        if event.type == "trial" and data["state"] not in ("QUEUED", "RUNNING"):
            settings = ", ".join(f"{axis} {value}" for axis, value in data["settings"].items())
            error = "" if data["error"] is None else f"  error {data['error']:.4f}"
            why = "" if data["state"] == "SUCCEEDED" else f"  {data['message']}"
            self.say(f"trial {data['number']} {data['state']}  {settings}{error}{why}")
        elif event.type == "progress" and time.monotonic() - self.told_s >= LINE_EVERY_S:
            self.told_s = time.monotonic()
            left = "" if data["eta_s"] is None else f", {duration(data['eta_s'])} left"
            ended = data["total"] - data["queued"] - data["running"]
            self.say(f"{data['progress']:.0%}  {ended} of {data['total']} trials, {data['running']} running{left}")
        elif (line := log_line(event)) is not None:
            self.say(line)

    def say(self, line: str) -> None:
        """Print a line at once, also into a pipe."""
        print(line, file=self.stream, flush=True)


def read_sweep(request: SweepRequest) -> SweepSpec:
    """The spec, or exit status 2 with one line a field."""
    try:
        spec = read_sweep_file(request.spec_file, request.sets).resolved(Path.cwd())
        configurations(spec)
    except SpecInvalid as error:
        refuse(request, error)
    return spec


def refuse(request: SweepRequest, error: SpecInvalid) -> None:
    """One line a field, and exit status 2."""
    for item in error.errors:
        complain(f"{request.spec_file}: {item.pointer or '/'}: {item.message}")
    raise typer.Exit(BAD_INPUT) from None


def check_sweep(request: SweepRequest) -> None:
    """Print the spec in full and how many trials it comes to."""
    spec = read_sweep(request)
    told = {"trials": len(configurations(spec)), "spec": spec.model_dump(mode="json")}
    typer.echo(json.dumps(told, indent=None if request.as_json else 2))


def submit_sweep(doors: Doors, server: str, request: SweepRequest) -> None:
    """Give it to a service."""
    spec = read_sweep(request)
    with asking(doors, server, str(request.spec_file)) as client:
        tell_sweep(client.sweep(spec), request.as_json)


def sweep_here(doors: Doors, request: SweepRequest) -> int:
    """Run a sweep on a Ray of its own, or on an existing one. Returns the exit status."""
    spec = read_sweep(request)
    folder = (request.sweep_dir or doors.runs_dir / new_sweep_id()).absolute()
    lines = SweepLines(sys.stderr if request.as_json else sys.stdout)
    try:
        with Interrupts() as interrupts, doors.cluster(request.address, trial_needs(spec), request.num_cpus) as info:
            check_fits(spec, doors.runs().total_resources())
            interrupts.install()
            found = LocalSweep.open(spec, folder)
            interrupts.run = found
            lines.say(f"Sweep {found.ledger.get('id')}: {spec.name}, {len(found.ledger.trials())} trials, in {folder}")
            if info.dashboard_url:
                lines.say(f"Ray dashboard: {info.dashboard_url}  (if it asks for a token: `ray get-auth-token`)")
            done = found.run(lines.show)
    except SpecInvalid as error:
        refuse(request, error)
    except NeverFits as error:
        complain(f"{request.spec_file}: /job/workers: {error}")
        return BAD_INPUT
    except KeyboardInterrupt:
        complain(f"Ended. `millrace sweep {request.spec_file} --sweep-dir {folder}` goes on with it.")
        return FAILED
    except MillraceError as error:
        complain(str(error))
        return FAILED
    _print_done(done, Ledger(folder), request.as_json)
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
    axes = list(sweep.spec.axes)
    table = Table("trial", "job", *axes, "state", "progress", "error", "message", box=None)
    for trial in sweep.results:
        error = "" if trial.error is None else f"{trial.error:.4f}"
        values = [str(trial.settings.get(axis, "")) for axis in axes]
        cells = (str(trial.number), trial.id, *values, trial.state, f"{trial.progress:.0%}", error, trial.message)
        table.add_row(*(Text(cell) for cell in cells))
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def print_sweeps(found: list[SweepSummary], as_json: bool) -> None:
    """A table of sweeps, or one JSON object."""
    if as_json:
        typer.echo(json.dumps({"sweeps": [one.model_dump(mode="json") for one in found]}))
        return
    table = Table("sweep", "name", "state", "trials", "progress", "left", "message", box=None)
    for one in found:
        left = "" if one.eta_s is None else duration(one.eta_s)
        cells = (one.id, one.name, one.state, str(one.trials["total"]), f"{one.progress:.0%}", left, one.message)
        table.add_row(*(Text(cell) for cell in cells))
    Console().print(table)


def tell_sweep(sweep: SweepView, as_json: bool) -> None:
    """What has become of it, in a sentence or as one JSON object."""
    typer.echo(sweep.model_dump_json() if as_json else f"{_sentence(sweep)}; `millrace watch {sweep.id}` follows it")


def print_report(doors: Doors, server: str | None, sweep: str, out: Path | None, as_json: bool) -> None:
    """The report of a sweep of a service, or of one in a folder; with `out` its files too."""
    ledger = Ledger(Path(sweep))
    if ledger.exists:
        files = report_files(ledger)
    elif sweep.startswith("sweep-"):
        with asking(doors, server) as client:
            files = dict(client.report_files(sweep))
    else:
        complain(f"{sweep} is neither a sweep's folder nor the id of one")
        raise typer.Exit(BAD_INPUT)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (out / name).write_bytes(data)
    typer.echo(files["report.json" if as_json else "report.md"].decode().rstrip())


def report_files(ledger: Ledger) -> dict[str, bytes]:
    """Report and figures of a sweep in a folder, by file name."""
    from service import figures  # matplotlib, which no other command needs

    found = evidence(ledger)
    report = scaling_report(found)
    texts = {"report.json": report.model_dump_json(), "report.md": markdown(report)}
    return {name: text.encode() for name, text in texts.items()} | figures(report, found)


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
            value = load_yaml(text)
        except SpecInvalid as error:
            complain(f"{name}: {error}")
            raise typer.Exit(BAD_INPUT) from None
        if name.startswith("limits."):
            limits[name.removeprefix("limits.")] = value
        else:
            axes[name] = value if isinstance(value, list) else [value]
    return axes, limits


def _print_done(done: SweepView, ledger: Ledger, as_json: bool) -> None:
    """The end, and what it says; as one JSON object the sweep with its report."""
    report = scaling_report(evidence(ledger))
    if as_json:
        whole = done.model_dump(mode="json") | {"report": json.loads(report.model_dump_json())}
        typer.echo(json.dumps(whole))
        return
    typer.echo(_sentence(done))
    for variant in report.variants:
        for line in variant.answer:
            typer.echo(line)
    typer.echo(f"`millrace report {ledger.folder}` prints the whole report; --out writes its figures too")


def _sentence(sweep: SweepSummary) -> str:
    left = "" if sweep.eta_s is None else f", {duration(sweep.eta_s)} left"
    return f"Sweep {sweep.id} ({sweep.name}) is {sweep.state}: {sweep.message} ({sweep.progress:.0%}{left})"
