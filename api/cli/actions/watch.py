"""Several jobs on a terminal: a table that moves, or in a pipe a line for each change."""

import json
import sys
import time
from collections.abc import Callable

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from api.cli.actions.jobs import job_table
from api.cli.connection import complain
from api.cli.context import FAILED, INTERRUPTED, OK
from api.client.client import Client
from service import JobSummary, State

EVERY_S = 1.0
ACTIVE = tuple(state for state in State if not state.is_terminal)


def watch_jobs(client: Client, job_ids: list[str], as_json: bool, every_s: float = EVERY_S) -> int:
    """Follow jobs to their ends; without ids, all that have not ended. Returns the exit status."""
    wanted = job_ids or [job.id for job in client.list(ACTIVE)]
    known: dict[str, JobSummary] = {}
    try:
        _follow(lambda: _look(client, wanted, known), as_json, every_s)
    except KeyboardInterrupt:
        complain("Detached; the jobs go on. `millrace watch` follows them again.")
        return INTERRUPTED
    if as_json:
        typer.echo(json.dumps({"jobs": [job.model_dump(mode="json") for job in known.values()]}))
    return OK if all(job.state is State.SUCCEEDED for job in known.values()) else FAILED


def _look(client: Client, wanted: list[str], known: dict[str, JobSummary]) -> list[JobSummary]:
    """All of them as they are now; what has ended is not asked for again."""
    for job_id in wanted:
        if job_id not in known or not known[job_id].state.is_terminal:
            known[job_id] = JobSummary(**client.get(job_id).model_dump(include=set(JobSummary.model_fields)))
    return list(known.values())


def _follow(look: Callable[[], list[JobSummary]], as_json: bool, every_s: float) -> None:
    stream = sys.stderr if as_json else sys.stdout
    printed: dict[str, str] = {}
    is_seen = stream.isatty()
    console = Console(file=stream)
    with Live(_table([]), console=console, auto_refresh=False, transient=False) if is_seen else console as shown:
        while True:
            jobs = look()
            if isinstance(shown, Live):
                shown.update(_table(jobs), refresh=True)
            else:
                for job in jobs:
                    line = f"{job.id} {job.name} {job.state} {job.message}".rstrip()
                    if printed.get(job.id) != line:
                        printed[job.id] = line
                        print(line, file=stream, flush=True)
            if all(job.state.is_terminal for job in jobs):
                return
            time.sleep(every_s)


def _table(jobs: list[JobSummary]) -> Table | Text:
    return job_table(jobs) if jobs else Text("no jobs")
