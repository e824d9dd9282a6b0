"""Builds the `millrace` command from its parts."""

from typing import Annotated

import typer

from api.cli.commands.admin import add_admin
from api.cli.commands.claims import add_claims
from api.cli.commands.edits import add_edits
from api.cli.commands.jobs import add_jobs
from api.cli.commands.local import add_local
from api.cli.commands.models import add_models
from api.cli.commands.projects import add_projects
from api.cli.commands.scaling import add_scaling
from api.cli.commands.serve import add_serve
from api.cli.commands.sign_in import add_sign_in
from api.cli.commands.sweeps import add_sweeps
from api.cli.commands.verbs import add_verbs
from api.cli.context import CliContext


def build(context: CliContext) -> typer.Typer:
    """The `millrace` command."""
    app = typer.Typer(
        help="Elastic distributed training on Ray.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "obj": context},
    )
    app.callback()(_options)
    add_local(app, context)
    add_serve(app, context)
    add_sign_in(app, context)
    add_jobs(app, context)
    add_sweeps(app, context)
    add_scaling(app, context)
    add_claims(app, context)
    add_admin(app, context)
    add_verbs(app, context)
    add_edits(app, context)
    add_models(app, context)
    add_projects(app, context)
    return app


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version  # takes longer than the rest of this module

        typer.echo(f"millrace {version('millrace')}")
        raise typer.Exit


def _options(
    _: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Elastic distributed training on Ray."""
