"""The command line's part about sweeps."""

from pathlib import Path
from typing import Annotated

import typer

from api.cli.context import CliContext
from api.cli.options import (
    AddressOption,
    CpusOption,
    ListedOption,
    Output,
    OutputOption,
    ProjectOption,
    ServerOption,
    Sets,
    SpecFile,
)

SweepId = Annotated[str, typer.Argument(metavar="SWEEP", help="The sweep's id.", show_default=False)]


def add_sweeps(app: typer.Typer, context: CliContext) -> None:
    """All of them."""
    _add_sweep(app, context)
    _add_report(app, context)
    _add_verbs(app, context)


def _add_sweep(app: typer.Typer, context: CliContext) -> None:
    @app.command()
    def sweep(
        spec_file: SpecFile,
        *,
        sets: Sets = None,
        project: ProjectOption = None,
        sweep_dir: Annotated[
            Path | None, typer.Option(help="Where it leaves everything; one that is there goes on. [runs/SWEEP]")
        ] = None,
        server: Annotated[
            str | None, typer.Option("--server", metavar="URL", help="Give it to this service instead.")
        ] = None,
        address: AddressOption = None,
        num_cpus: CpusOption = None,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check the spec, and count its trials.")] = False,
        output: OutputOption = Output.text,
    ) -> None:
        """Run one job with some of its fields varied, here and now, or on a service. Ctrl-C ends it cleanly."""
        from api.cli.actions.run import RunRequest
        from api.cli.actions.sweeps import check_sweep, submit_sweep, sweep_here

        sets = [*(sets or []), *([] if project is None else [f"job.project={project}"])]
        request = RunRequest(spec_file, sets, address, sweep_dir, num_cpus, output is Output.json)
        if dry_run:
            check_sweep(request)
        elif server is not None:
            submit_sweep(context, server, request)
        else:
            raise typer.Exit(sweep_here(context, request))


def _add_report(app: typer.Typer, context: CliContext) -> None:
    @app.command()
    def report(
        sweep: Annotated[str, typer.Argument(metavar="SWEEP", help="Its id, or its folder.", show_default=False)],
        *,
        out: Annotated[Path | None, typer.Option(help="Write report.json, report.md and the figures there.")] = None,
        server: ServerOption = None,
        output: OutputOption = Output.text,
    ) -> None:
        """Print what a sweep says about the batch and the learning rate."""
        from api.cli.actions.sweeps import print_report

        print_report(context, server, sweep, out, output is Output.json)


def _add_verbs(app: typer.Typer, context: CliContext) -> None:
    @app.command()
    def sweeps(
        state: Annotated[list[str] | None, typer.Option(help="Only sweeps in this state; may be repeated.")] = None,
        label: Annotated[list[str] | None, typer.Option(help="Only sweeps whose job has this KEY=VALUE.")] = None,
        archived: Annotated[bool, typer.Option("--archived", help="The archived ones.")] = False,
        project: ListedOption = None,
        limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
        server: ServerOption = None,
        output: OutputOption = Output.text,
    ) -> None:
        """List sweeps, newest first."""
        from api.cli.actions.sweeps import SweepsWanted, print_sweeps
        from api.cli.connection import connected

        with connected(context, server) as client:
            print_sweeps(
                client, SweepsWanted(state or [], label or [], archived, project, limit), output is Output.json
            )

    @app.command()
    def extend(
        sweep: SweepId,
        values: Annotated[
            list[str], typer.Argument(metavar="AXIS=VALUES", help="As in seed=[3,4]; limits.trials=N too.")
        ],
        server: ServerOption = None,
        output: OutputOption = Output.text,
    ) -> None:
        """Add values to a sweep's axes, while it runs or after it has ended; only what is new is run."""
        from api.cli.actions.sweeps import added, print_sweep_state
        from api.cli.connection import connected

        axes, limits = added(values)
        with connected(context, server) as client:
            print_sweep_state(client.extend_sweep(sweep, axes, limits), output is Output.json)
