"""The command line's part about what more workers bring, measured."""

from pathlib import Path
from typing import Annotated

import typer

from api.cli.commands.local import PlanForm
from api.cli.context import CliContext
from api.cli.options import AddressOption, CpusOption, Sets, SpecFile


def add_scaling(app: typer.Typer, context: CliContext) -> None:
    """The command."""

    @app.command()
    def scaling(
        spec_file: SpecFile,
        *,
        sets: Sets = None,
        workers: Annotated[str, typer.Option(metavar="1,2,4", help="Or 1..4.")] = "1,2,4",
        until: Annotated[
            str | None, typer.Option(metavar="METRIC=VALUE", help="Also the time to this target. [none]")
        ] = None,
        simulate: Annotated[bool, typer.Option("--simulate", help="Run nothing, and only predict.")] = False,
        folder: Annotated[
            Path | None,
            typer.Option("--scaling-dir", help="Where the runs lie; what is there goes on. [runs/scaling/NAME]"),
        ] = None,
        plot: Annotated[Path | None, typer.Option(help="Where a picture goes, a PNG or SVG.")] = None,
        address: AddressOption = None,
        num_cpus: CpusOption = None,
        output: Annotated[PlanForm, typer.Option("-o", "--output", help="json: one object.")] = PlanForm.text,
    ) -> None:
        """Run a job on several numbers of workers: rate, speed-up, error, time to a target; and what is predicted."""
        from api.cli.actions.scaling import ScalingRequest, run_scaling

        asked = (workers, until, simulate, folder, plot, output.value, address, num_cpus)
        raise typer.Exit(run_scaling(context, ScalingRequest(spec_file, sets or [], *asked)))
