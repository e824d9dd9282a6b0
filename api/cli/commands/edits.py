"""The commands that change what is said of a job or a sweep: `edit`, `label`, `archive` and `unarchive`."""

from typing import Annotated, Any

import typer

from api.cli.context import CliContext
from api.cli.options import JobId, Output, OutputOption, ServerOption, is_sweep

Labels = Annotated[
    list[str], typer.Argument(metavar="KEY=VALUE|KEY-...", help="Set a label; KEY- takes it away.", show_default=False)
]


def add_edits(app: typer.Typer, context: CliContext) -> None:
    """Add them."""
    _add_edit(app, context)
    _add_label(app, context)
    _add_archive(app, context)


def _add_edit(app: typer.Typer, context: CliContext) -> None:
    @app.command()
    def edit(
        job: JobId,
        *,
        name: Annotated[str | None, typer.Option(help="Its new name.", show_default=False)] = None,
        notes: Annotated[str | None, typer.Option(help='What you say of it; "": nothing.', show_default=False)] = None,
        priority: Annotated[
            int | None, typer.Option(min=-100, max=100, help="A waiting job moves in the queue.", show_default=False)
        ] = None,
        server: ServerOption = None,
        output: OutputOption = Output.text,
    ) -> None:
        """Change the name, notes or priority of a job or a sweep."""
        changes = {"name": name, "notes": notes, "priority": priority}
        given = {field: value for field, value in changes.items() if value is not None}
        if not given:
            raise typer.BadParameter("give what is to change: --name, --notes or --priority")
        _change(context, server, output, job, given)


def _add_label(app: typer.Typer, context: CliContext) -> None:
    @app.command()
    def label(job: JobId, labels: Labels, server: ServerOption = None, output: OutputOption = Output.text) -> None:
        """Set labels of a job or a sweep, as in `millrace label JOB team=vision draft-`."""
        changed: dict[str, str | None] = {}
        for one in labels:
            key, equals, value = one.partition("=")
            if not equals and not key.endswith("-"):
                raise typer.BadParameter(f"{one!r} is neither KEY=VALUE nor KEY-")
            changed[key if equals else key[:-1]] = value if equals else None
        _change(context, server, output, job, {"labels": changed})


def _add_archive(app: typer.Typer, context: CliContext) -> None:
    @app.command()
    def archive(job: JobId, server: ServerOption = None, output: OutputOption = Output.text) -> None:
        """Leave what has ended out of lists; `list` and `sweeps` have it with --archived."""
        _change(context, server, output, job, {"archived": True})

    @app.command()
    def unarchive(job: JobId, server: ServerOption = None, output: OutputOption = Output.text) -> None:
        """Have lists show an archived job or sweep again."""
        _change(context, server, output, job, {"archived": False})


def _change(context: CliContext, server: str | None, output: Output, job: str, changes: dict[str, Any]) -> None:
    from api.cli.actions.verbs import print_edited
    from api.cli.connection import connected

    with connected(context, server) as client:
        changed = client.edit_sweep(job, **changes) if is_sweep(job) else client.edit(job, **changes)
        print_edited(changed, output is Output.json)
