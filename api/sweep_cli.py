"""The command line's part about sweeps."""

from pathlib import Path
from typing import Annotated

import typer

from api.cli import AddressOption, CpusOption, Doors, Output, OutputOption, ServerOption, Sets

SweepFile = Annotated[Path, typer.Argument(metavar="SPEC", help="A YAML or JSON file.", show_default=False)]
SweepId = Annotated[str, typer.Argument(metavar="SWEEP", help="The sweep's id.", show_default=False)]


def add_sweeps(app: typer.Typer, doors: Doors) -> None:
    """All of them."""
    _add_sweep(app, doors)
    _add_report(app, doors)
    _add_verbs(app, doors)


def _add_sweep(app: typer.Typer, doors: Doors) -> None:
    @app.command()
    def sweep(
        spec_file: SweepFile,
        *,
        sets: Sets = None,
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
        from api.sweep_commands import SweepRequest, check_sweep, submit_sweep, sweep_here

        request = SweepRequest(spec_file, sets or [], address, sweep_dir, num_cpus, output is Output.json)
        if dry_run:
            check_sweep(request)
        elif server is not None:
            submit_sweep(doors, server, request)
        else:
            raise typer.Exit(sweep_here(doors, request))


def _add_report(app: typer.Typer, doors: Doors) -> None:
    @app.command()
    def report(
        sweep: Annotated[str, typer.Argument(metavar="SWEEP", help="Its id, or its folder.", show_default=False)],
        *,
        out: Annotated[Path | None, typer.Option(help="Write report.json, report.md and the figures there.")] = None,
        server: ServerOption = None,
        output: OutputOption = Output.text,
    ) -> None:
        """Print what a sweep says about the batch and the learning rate."""
        from api.sweep_commands import print_report

        print_report(doors, server, sweep, out, output is Output.json)


def _add_verbs(app: typer.Typer, doors: Doors) -> None:
    @app.command()
    def sweeps(server: ServerOption = None, output: OutputOption = Output.text) -> None:
        """List sweeps, newest first."""
        from api.commands import asking
        from api.sweep_commands import print_sweeps

        with asking(doors, server) as client:
            print_sweeps(list(client.sweeps()), output is Output.json)

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
        from api.commands import asking
        from api.sweep_commands import added, tell_sweep

        axes, limits = added(values)
        with asking(doors, server) as client:
            tell_sweep(client.extend_sweep(sweep, axes, limits), output is Output.json)
