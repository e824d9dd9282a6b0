"""The command line's part about the papers' claims."""

from pathlib import Path
from typing import Annotated

import typer

from api.cli.context import CliContext
from api.cli.options import AddressOption, CpusOption, Output, OutputOption, Sets


def add_claims(app: typer.Typer, context: CliContext) -> None:
    """The command."""

    @app.command()
    def claims(
        names: Annotated[
            list[str] | None, typer.Argument(metavar="[NAME]...", help="Names or numbers; none: list them.")
        ] = None,
        *,
        quick: Annotated[
            bool, typer.Option("--quick", help="A short run on data that come with Millrace: it works, or not.")
        ] = False,
        folder: Annotated[
            Path | None,
            typer.Option("--claims-dir", help="Where runs and reports lie; what is there goes on. [runs/claims]"),
        ] = None,
        sets: Sets = None,
        address: AddressOption = None,
        num_cpus: CpusOption = None,
        output: OutputOption = Output.text,
    ) -> None:
        """Run the experiments that ask whether the papers' claims hold here, and give a verdict on each."""
        from api.cli.actions.claims import ClaimsRequest, list_claims, run_claims

        request = ClaimsRequest(
            names or [],
            quick,
            folder or context.runs_dir / "claims",
            sets or [],
            address,
            num_cpus,
            output is Output.json,
        )
        if names:
            raise typer.Exit(run_claims(context, request))
        list_claims(request)
