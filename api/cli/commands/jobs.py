"""The commands that submit, follow, list, show and cancel jobs."""

import json
from typing import Annotated

import typer

from api.cli.context import CliContext
from api.cli.options import (
    DryRunOption,
    JobId,
    JobIds,
    KeyOption,
    ListedOption,
    Output,
    OutputOption,
    ProjectOption,
    ServerOption,
    Sets,
    SpecFile,
    is_sweep,
)


def add_jobs(app: typer.Typer, context: CliContext) -> None:
    """Add `submit`, `watch`, `logs`, `list`, `show`, `cancel` and `schema`."""
    _add_submit(app, context)
    _add_watch(app, context)
    _add_views(app, context)


def _add_submit(app: typer.Typer, context: CliContext) -> None:
    @app.command()
    def submit(
        spec_file: SpecFile,
        *,
        sets: Sets = None,
        project: ProjectOption = None,
        key: KeyOption = None,
        dry_run: DryRunOption = False,
        watch: Annotated[bool, typer.Option("--watch", help="Follow the job.")] = False,
        server: ServerOption = None,
        output: OutputOption = Output.text,
    ) -> None:
        """Give a job to a running service."""
        from api.cli.actions.jobs import print_job, watch_job
        from api.cli.actions.specs import print_checked, read_job
        from api.cli.connection import connected

        spec = read_job(spec_file, [*(sets or []), *([] if project is None else [f"project={project}"])])
        with connected(context, server, str(spec_file)) as client:
            if dry_run:
                print_checked(client.check(spec), output is Output.json)
                return
            job = client.submit(spec, key)
            if watch:
                raise typer.Exit(watch_job(client, job.id, output is Output.json))
            print_job(job, output is Output.json, f"Job {job.id} is {job.state}; `millrace watch {job.id}` follows it")


def _add_watch(app: typer.Typer, context: CliContext) -> None:
    @app.command()
    def watch(jobs: JobIds = None, server: ServerOption = None, output: OutputOption = Output.text) -> None:
        """Follow a job or a sweep to its end, or several jobs in a table. Ctrl-C leaves them running."""
        from api.cli.actions.jobs import watch_job
        from api.cli.actions.sweeps import watch_sweep
        from api.cli.actions.watch import watch_jobs
        from api.cli.connection import connected

        with connected(context, server) as client:
            if jobs is None or len(jobs) != 1:
                raise typer.Exit(watch_jobs(client, jobs or [], output is Output.json))
            watching = watch_sweep if is_sweep(jobs[0]) else watch_job
            raise typer.Exit(watching(client, jobs[0], output is Output.json))

    @app.command()
    def logs(
        job: JobId,
        *,
        follow: Annotated[bool, typer.Option("-f", "--follow", help="On to its end.")] = False,
        worker: Annotated[int | None, typer.Option(min=0, help="Only what this worker's code has printed.")] = None,
        grep: Annotated[str, typer.Option(metavar="TEXT", help="Only lines that contain it.", show_default=False)] = "",
        server: ServerOption = None,
        output: Annotated[Output, typer.Option("-o", "--output", help="json: every event, one a line.")] = Output.text,
    ) -> None:
        """Print a job's log, with what its code prints."""
        from api.cli.actions.jobs import print_logs
        from api.cli.connection import connected
        from service import LogFilter

        with connected(context, server) as client:
            raise typer.Exit(print_logs(client, job, LogFilter(worker, grep), follow, output is Output.json))


def _add_views(app: typer.Typer, context: CliContext) -> None:
    @app.command("list")
    def list_jobs(
        state: Annotated[list[str] | None, typer.Option(help="Only jobs in this state; may be repeated.")] = None,
        label: Annotated[list[str] | None, typer.Option(help="Only jobs with this KEY=VALUE or KEY.")] = None,
        project: ListedOption = None,
        limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
        archived: Annotated[bool, typer.Option("--archived", help="The archived ones.")] = False,
        server: ServerOption = None,
        output: OutputOption = Output.text,
    ) -> None:
        """List jobs, newest first."""
        from api.cli.actions.jobs import print_list
        from api.cli.connection import connected

        with connected(context, server) as client:
            print_list(client, (state or [], label or [], archived, limit, project), output is Output.json)

    @app.command()
    def show(job: JobId, server: ServerOption = None, output: OutputOption = Output.text) -> None:
        """Show one job or sweep."""
        from api.cli.actions.jobs import print_job
        from api.cli.actions.sweeps import print_sweep
        from api.cli.connection import connected

        with connected(context, server) as client:
            if is_sweep(job):
                print_sweep(client.get_sweep(job), output is Output.json)
            else:
                print_job(client.get(job), output is Output.json)

    @app.command()
    def cancel(job: JobId, server: ServerOption = None, output: OutputOption = Output.text) -> None:
        """Stop a job or a sweep cleanly, with checkpoints."""
        from api.cli.actions.verbs import print_change
        from api.cli.connection import connected

        with connected(context, server) as client:
            print_change(client.cancel_sweep(job) if is_sweep(job) else client.cancel(job), output is Output.json)

    @app.command()
    def schema() -> None:
        """Print the JSON Schema of a job spec."""
        from service import job_schema

        typer.echo(json.dumps(job_schema(), indent=2))
