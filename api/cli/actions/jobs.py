"""What the commands about jobs do."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import service
from api.cli.actions.specs import known_states
from api.cli.connection import complain
from api.cli.context import FAILED, INTERRUPTED, OK
from api.cli.display import display, duration, id_column, wide_console
from api.cli.interruptible import interruptible
from api.client.client import Client


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
    print_result(job.result, as_json, f"Everything is in {job.run_dir}")
    return OK if job.state is service.State.SUCCEEDED else FAILED


def print_logs(client: Client, job_id: str, wanted: service.LogFilter, follow: bool, as_json: bool) -> int:
    """Print a job's log, as far as it goes or to its end; as JSON its events, one a line."""
    if not follow and not as_json:
        typer.echo(client.logs(job_id, wanted.worker, wanted.grep), nl=False)
        return OK
    takes_all = wanted == service.LogFilter()
    try:
        for event in interruptible(client.events(job_id)) if follow else client.events_so_far(job_id):
            line = wanted.line(event)
            if as_json and (takes_all or line is not None):
                typer.echo(event.model_dump_json())
            elif line is not None and not as_json:
                typer.echo(line)
    except KeyboardInterrupt:
        complain("Detached; the job goes on.")
        return INTERRUPTED
    return OK


def print_list(client: Client, wanted: tuple[list[str], list[str], bool, int, str | None], as_json: bool) -> None:
    """Print a table of jobs, or one JSON object. wanted: states, labels, whether archived, how many at most, and of
    which project."""
    states, labels, archived, limit, project = wanted
    found = client.list(known_states(states), tuple(labels), archived, project)
    jobs = [job for job, _ in zip(found, range(limit), strict=False)]
    if as_json:
        typer.echo(json.dumps({"jobs": [job.model_dump(mode="json") for job in jobs]}))
        return
    wide_console().print(job_table(jobs))


def job_table(jobs: Sequence[service.JobSummary]) -> Table:
    """One line for each job."""
    ids = id_column("job", (job.id for job in jobs))
    table = Table(ids, "name", "algorithm", "state", "progress", "left", "metric", "message", box=None)
    for job in jobs:
        left = "" if job.eta_s is None else duration(job.eta_s)
        metric = "" if job.headline is None else f"{job.headline.replace('_', ' ')} {job.headline_value:.4g}"
        cells = (job.id, job.name, job.algorithm, job.state, f"{job.progress:.0%}", left, metric, job.message)
        table.add_row(*(Text(cell) for cell in cells))
    return table


def print_job(job: service.JobView, as_json: bool, sentence: str | None = None) -> None:
    """One job in full, or in a sentence, or as one JSON object that begins with its result."""
    if as_json:
        view = job.model_dump(mode="json", exclude={"result", "workers"})
        typer.echo(json.dumps({**job.result.model_dump(mode="json"), **view}))
        return
    if sentence is not None:
        typer.echo(sentence)
        return
    table = Table(box=None, show_header=False)
    rows = {
        "job": job.id,
        "name": job.name,
        "project": job.project,
        "labels": ", ".join(f"{key}={value}" for key, value in job.labels.items()),
        "notes": job.notes,
        "priority": str(job.priority),
        "state": f"{job.state} ({job.reason}) {job.message}",
        "progress": f"{job.progress:.0%}" + ("" if job.eta_s is None else f", {duration(job.eta_s)} left"),
        "workers": str(job.workers),
        "training": _sentence(job.result),
        **{name: _latency(latency) for name, latency in _latencies(job.result)},
        "predicted": "" if job.result.predicted is None else job.result.predicted.sentence,
        "run directory": job.run_dir,
    }
    if job.storage:
        rows["copy"] = job.storage
    for name, value in rows.items():
        table.add_row(Text(name, style="bold"), Text(value))
    Console().print(table)


def print_result(result: service.Result, as_json: bool, where: str) -> None:
    """Print how a run ended, and where its files are; or one JSON object."""
    if as_json:
        typer.echo(result.model_dump_json())
        return
    typer.echo(f"{result.state}: {_sentence(result)}" + (f" ({result.message})" if result.message else ""))
    for name, latency in _latencies(result):
        typer.echo(f"{name.capitalize()}: {_latency(latency)}.")
    if result.predicted is not None:
        typer.echo(f"{result.predicted.sentence}.")
    if (best := result.best) is not None:
        typer.echo(f"The best model, {best.metric} {best.value:.4f} after epoch {best.epoch:g}, is {best.model_path}")
    typer.echo(where)


def _latencies(result: service.Result) -> list[tuple[str, service.Latency]]:
    """Those that were counted."""
    found = (("fetches", result.fetch_latency), ("pushes", result.push_latency))
    return [(name, latency) for name, latency in found if latency is not None]


def _latency(latency: service.Latency) -> str:
    shares = ((50, latency.p50_s), (90, latency.p90_s), (99, latency.p99_s))
    told = ", ".join(f"{share} of 100 within {_milliseconds(seconds)}" for share, seconds in shares)
    return f"{latency.count:,}; {told}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _sentence(result: service.Result) -> str:
    parts = [f"{result.epochs:g} epochs", f"{result.examples:,} examples in {duration(result.wall_s)}"]
    if result.examples_per_s:
        parts.append(f"{result.examples_per_s:,.0f} a second")
    for name, value in (("train loss", result.train_loss), ("test loss", result.test_loss)):
        if value is not None:
            parts.append(f"{name} {value:.4f}")
    told = {f"validation {name}": value for name, value in result.validation.items()}
    told |= {f"test {name}": value for name, value in result.metrics.items() if name != "loss"}
    for name, value in told.items():
        parts.append(f"{name.replace('_', ' ')} " + ("none" if value is None else f"{value:.4f}"))
    return ", ".join(parts)
