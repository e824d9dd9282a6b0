"""The commands that pause, scale, resume, fork and trace."""

import json
from pathlib import Path
from typing import Annotated

import typer

from api.cli.context import CliContext
from api.cli.options import DryRunOption, JobId, KeyOption, Output, OutputOption, ServerOption, Sets, is_sweep


def add_verbs(app: typer.Typer, context: CliContext) -> None:
    """Add what is done with a job, and `pause`, `scale` and `resume` of sweeps."""
    _add_pause(app, context)
    _add_scale(app, context)
    _add_resume(app, context)
    _add_fork(app, context)
    _add_checkpoints(app, context)
    _add_delete(app, context)
    _add_trace(app, context)


def _add_pause(app: typer.Typer, context: CliContext) -> None:
    @app.command()
    def pause(job: JobId, server: ServerOption = None, output: OutputOption = Output.text) -> None:
        """Stop a job with a checkpoint, or take a sweep's processes away, to go on later."""
        from api.cli.actions.verbs import print_change
        from api.cli.connection import connected

        with connected(context, server) as client:
            print_change(client.pause_sweep(job) if is_sweep(job) else client.pause(job), output is Output.json)


def _add_scale(app: typer.Typer, context: CliContext) -> None:
    @app.command()
    def scale(
        job: JobId,
        workers: Annotated[int, typer.Argument(min=1, help="How many are to train.")],
        server: ServerOption = None,
        output: OutputOption = Output.text,
    ) -> None:
        """Have another number of workers train a running job, without a restart."""
        from api.cli.actions.jobs import print_job
        from api.cli.connection import connected

        with connected(context, server) as client:
            view = client.scale(job, workers)
            by = f"{workers} worker{'' if workers == 1 else 's'}"
            print_job(view, output is Output.json, f"Job {view.id} is going to be trained by {by}")


def _add_resume(app: typer.Typer, context: CliContext) -> None:
    @app.command()
    def resume(job: JobId, server: ServerOption = None, output: OutputOption = Output.text) -> None:
        """Go on with a job or a sweep that is paused."""
        from api.cli.actions.verbs import print_change
        from api.cli.connection import connected

        with connected(context, server) as client:
            print_change(client.resume_sweep(job) if is_sweep(job) else client.resume(job), output is Output.json)


def _add_fork(app: typer.Typer, context: CliContext) -> None:
    @app.command()
    def fork(
        job: JobId,
        *,
        sets: Sets = None,
        checkpoint: Annotated[str | None, typer.Option(metavar="STEP", help="Begin there. [the newest]")] = None,
        key: KeyOption = None,
        dry_run: DryRunOption = False,
        watch: Annotated[bool, typer.Option("--watch", help="Follow the new job.")] = False,
        server: ServerOption = None,
        output: OutputOption = Output.text,
    ) -> None:
        """Begin a new job from a checkpoint of another, with changes to its spec."""
        from api.cli.actions.jobs import print_job, watch_job
        from api.cli.actions.specs import as_exit, print_checked
        from api.cli.connection import connected
        from service import SpecInvalid, as_patch

        try:
            changes = as_patch(sets or [])
        except SpecInvalid as error:
            raise as_exit(error) from None
        with connected(context, server) as client:
            if dry_run:
                print_checked(client.check_fork(job, changes, checkpoint), output is Output.json)
                return
            view = client.fork(job, changes, checkpoint, key)
            if watch:
                raise typer.Exit(watch_job(client, view.id, output is Output.json))
            sentence = f"Job {view.id} begins from {view.forked_from}; `millrace watch {view.id}` follows it"
            print_job(view, output is Output.json, sentence)


def _add_checkpoints(app: typer.Typer, context: CliContext) -> None:
    @app.command()
    def checkpoints(job: JobId, server: ServerOption = None, output: OutputOption = Output.text) -> None:
        """List the checkpoints that a job has kept, oldest first."""
        from api.cli.connection import connected

        with connected(context, server) as client:
            found = list(client.checkpoints(job))
        if output is Output.json:
            typer.echo(json.dumps({"checkpoints": [one.model_dump(mode="json") for one in found]}))
            return
        for one in found:
            size = sum(file.bytes for file in one.files)
            typer.echo(f"{one.step}  epoch {one.epoch}  {size / 1e6:,.1f} MB")


def _add_delete(app: typer.Typer, context: CliContext) -> None:
    @app.command()
    def delete(job: JobId, server: ServerOption = None, output: OutputOption = Output.text) -> None:
        """Remove an ended job or sweep, with its trials, checkpoints and models."""
        from api.cli.connection import connected

        with connected(context, server) as client:
            if is_sweep(job):
                client.delete_sweep(job)
            else:
                client.delete(job)
        told = f"{'Sweep' if is_sweep(job) else 'Job'} {job} is deleted."
        typer.echo(json.dumps({"id": job, "deleted": True}) if output is Output.json else told)


def _add_trace(app: typer.Typer, context: CliContext) -> None:
    @app.command()
    def trace(
        job: JobId,
        *,
        steps: Annotated[int, typer.Option(min=1, max=100, help="How many steps.")] = 10,
        worker: Annotated[int | None, typer.Option(min=0, help="Of which: 1 is worker/1. [the first]")] = None,
        out: Annotated[Path | None, typer.Option(help="Where it is written: .json, or .json.gz. [here]")] = None,
        server: ServerOption = None,
        output: OutputOption = Output.text,
    ) -> None:
        """Record what one worker does in its next steps, while it trains, as a Chrome trace."""
        from api.cli.actions.trace import trace_job
        from api.cli.connection import connected

        with connected(context, server) as client:
            raise typer.Exit(trace_job(client, job, (steps, worker), out, output is Output.json))
