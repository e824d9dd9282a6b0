"""`millrace trace`: some steps of a worker of a running job, recorded and fetched."""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from api.cli.connection import complain
from api.cli.context import BAD_INPUT, FAILED, INTERRUPTED, OK
from api.cli.interruptible import interruptible
from api.client.client import Client


def trace_job(client: Client, job_id: str, wanted: tuple[int, int | None], out: Path | None, as_json: bool) -> int:
    """Record so many steps of a worker (of the first, if none is named), and write the trace to a file. Returns the
    exit status."""
    steps, worker = wanted
    if out is not None and not out.parent.is_dir():
        complain(f"--out: there is no folder {out.parent}")
        return BAD_INPUT
    try:
        last = _recorded(client, job_id, steps, worker)
    except KeyboardInterrupt:
        complain("Detached; what is recorded will be on the job's page.")
        return INTERRUPTED
    why = last.get("why", "")
    if "file" not in last:
        complain(f"worker/{last['worker']} has recorded no step: {why}" if last else "the job ended first")
        return FAILED
    path = out or Path(f"{job_id}-{last['file']}")
    client.download_trace(job_id, last["file"], path)
    if path.suffix != ".gz":
        path.write_bytes(gzip.decompress(path.read_bytes()))
    if why:
        complain(f"{last['steps']} of {steps} steps: {why}")
    if as_json:
        typer.echo(json.dumps({"path": str(path), **{name: last[name] for name in ("worker", "steps")}}))
    else:
        typer.echo(f"{path}: {last['steps']} steps of worker/{last['worker']}, {path.stat().st_size / 1000:,.0f} KB")
        typer.echo("The job's page draws it; so do https://ui.perfetto.dev and chrome://tracing")
    return OK


def _recorded(client: Client, job_id: str, steps: int, worker: int | None) -> dict[str, Any]:
    """What the last event about it says; a bar moves until then."""
    columns = (
        TextColumn("recording", markup=False),
        BarColumn(),
        TextColumn("{task.completed:.0f} of {task.total:.0f} steps"),
    )
    last: dict[str, Any] = {}
    with Progress(*columns, console=Console(file=sys.stderr), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("recording", total=steps)
        for event in interruptible(client.trace(job_id, steps, worker)):
            last = event.data
            bar.update(task, completed=last["steps"])
    return last
