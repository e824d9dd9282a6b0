"""What `millrace scaling` does, once its arguments are read."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from api.cli.actions.specs import read_job
from api.cli.actions.sweep_here import SweepHere
from api.cli.connection import complain
from api.cli.context import BAD_INPUT, OK, CliContext
from api.cli.display import wide_console
from service import (
    JobSpec,
    MillraceError,
    Plan,
    PlanRequest,
    SpecInvalid,
    StepProfile,
    Study,
    SweepSpec,
    TrialStore,
    read_profile,
    study_of,
    study_page,
    study_sweep,
    study_tables,
    trial_needs,
    worker_counts,
)

PROFILE = "profile.json"


@dataclass(frozen=True)
class ScalingRequest:
    """What was asked."""

    spec_file: Path
    sets: list[str]
    workers: str
    until: str | None
    simulate: bool
    folder: Path | None
    plot: Path | None
    form: str
    address: str | None
    num_cpus: int | None


def run_scaling(context: CliContext, request: ScalingRequest) -> int:
    """Run the job on each number of workers, or only predict that. Returns the exit status."""
    job = read_job(request.spec_file, request.sets)
    folder = (request.folder or context.runs_dir / "scaling" / job.name).absolute()
    try:
        counts = worker_counts(request.workers)
        sweep = study_sweep(job, counts, request.until).resolved(Path.cwd())
        trial_needs(sweep)  # it makes every trial's spec
    except SpecInvalid as error:
        complain(_as_options(error, request))
        return BAD_INPUT
    except MillraceError as error:
        complain(f"--{error}")
        return BAD_INPUT
    if request.plot is not None and not request.plot.parent.is_dir():
        complain(f"--plot: there is no folder {request.plot.parent}")
        return BAD_INPUT
    plan, why = _plan(sweep.job, counts, folder)
    if why:
        complain(f"nothing is predicted: {why}")
    if request.simulate and plan is None:
        return BAD_INPUT
    status = OK if request.simulate else _measure(context, request, sweep, folder)
    if status == BAD_INPUT:
        return status
    store = TrialStore(folder)
    found = study_of(sweep.job, counts, store if store.exists and not request.simulate else None, plan, _cores())
    if not request.simulate:
        (folder / "scaling.json").write_text(found.model_dump_json(indent=1))
        (folder / "scaling.md").write_text(study_page(found))
    return max(status, _show(found, request))


def _as_options(error: SpecInvalid, request: ScalingRequest) -> str:
    """The errors of options by the options' names, any other one by the file's."""
    names = {"/until": "--until", "/axes": "--workers", "/job": "--scaling-dir"}
    told = [f"{names.get(e.pointer, f'{request.spec_file}: {e.pointer}')}: {e.message}" for e in error.errors]
    return "; ".join(told)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _plan(job: JobSpec, counts: Sequence[int], folder: Path) -> tuple[Plan | None, str]:
    """By one worker's steps, which are timed once and kept; or why there is none."""
    from service import plan_spec

    try:
        return plan_spec(job.train, PlanRequest(workers=tuple(counts), profile=_profile(job, folder / PROFILE))), ""
    except MillraceError as error:
        return None, str(error)


def _profile(job: JobSpec, kept: Path) -> StepProfile:
    if kept.exists():
        return read_profile(kept)
    from service import profile_step

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("timing steps of one worker", total=None)
        found = profile_step(job.train, on_step=lambda done: bar.update(task, completed=done))
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(found.model_dump_json(indent=2) + "\n")
    return found


def _measure(context: CliContext, request: ScalingRequest, sweep: SweepSpec, folder: Path) -> int:
    """Run what has not been run yet. Returns the exit status."""
    return SweepHere(
        sweep,
        folder,
        request.address,
        request.num_cpus,
        title=lambda trials: f"{trials} numbers of workers, one after the other",
        refused=lambda error: _as_options(error, request),
        too_large=lambda error: f"--workers: {error}",
    ).run(context)


def _show(study: Study, request: ScalingRequest) -> int:
    if request.plot is not None:
        from service import study_picture  # matplotlib

        try:
            request.plot.write_bytes(study_picture(study)["svg" if request.plot.suffix == ".svg" else "png"])
        except OSError as error:
            complain(f"--plot: {request.plot} cannot be written: {error.strerror}")
            return BAD_INPUT
    if request.form == "json":
        typer.echo(study.model_dump_json())
    elif request.form == "md":
        typer.echo(study_page(study), nl=False)
    else:
        for title, heads, rows in study_tables(study):
            table = Table(title=title, title_justify="left", box=None)
            for head in heads:
                table.add_column(head, justify="right")
            for row in rows:
                table.add_row(*map(Text, row))
            wide_console().print(table)
        for note in study.notes:
            typer.echo(f"Note: {note}.")
    return OK
