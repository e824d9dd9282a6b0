"""The commands about finished models, and the registry of them."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from api.cli.completion import job_ids
from api.cli.context import CliContext
from api.cli.options import JobId, Output, OutputOption, ServerOption


class ModelName(StrEnum):
    """The models that a job leaves."""

    model = "model"
    best = "best"
    raw = "raw"


class FormatName(StrEnum):
    """What a service writes models in."""

    safetensors = "safetensors"
    torch_save = "torch.save"
    torch_export = "torch.export"
    onnx = "onnx"


JobOrVersion = Annotated[
    str,
    typer.Argument(
        metavar="JOB|NAME@VERSION", help="The id of the job, or a registered model.", autocompletion=job_ids
    ),
]
WhichOption = Annotated[ModelName, typer.Option(help="The finished, the best, or an average's raw one.")]


def add_models(app: typer.Typer, context: CliContext) -> None:
    """Add them."""
    _add_model(app, context)
    _add_register(app, context)
    _add_registry(app, context)


def _add_model(app: typer.Typer, context: CliContext) -> None:
    @app.command()
    def model(
        job: JobOrVersion,
        *,
        out: Annotated[Path | None, typer.Option(help="Where it is written. [model.safetensors]")] = None,
        which: WhichOption = ModelName.model,
        form: Annotated[
            FormatName | None, typer.Option("--format", help="In which format. [by the ending of --out]")
        ] = None,
        server: ServerOption = None,
        output: OutputOption = Output.text,
    ) -> None:
        """Fetch the finished model of a job, or a registered one."""
        from api.cli.actions.models import fetch
        from api.cli.connection import connected

        with connected(context, server) as client:
            fetch(client, job, out, (which.value, None if form is None else form.value), output is Output.json)


def _add_register(app: typer.Typer, context: CliContext) -> None:
    @app.command()
    def register(
        job: JobId,
        name: Annotated[str, typer.Argument(help="Of the model; each registration makes its next version.")],
        *,
        which: WhichOption = ModelName.model,
        notes: Annotated[str, typer.Option(help="What you say of it.", show_default=False)] = "",
        server: ServerOption = None,
        output: OutputOption = Output.text,
    ) -> None:
        """Register the finished model of a job as a version of a name; it stays when the job is removed."""
        from api.cli.connection import connected

        with connected(context, server) as client:
            made = client.register(job, name, which.value, notes)
        sentence = f"{made.id} is the model of job {made.job}; `millrace model {made.id}` fetches it"
        typer.echo(made.model_dump_json() if output is Output.json else sentence)


def _add_registry(app: typer.Typer, context: CliContext) -> None:
    @app.command()
    def registry(
        name: Annotated[
            str | None,
            typer.Argument(metavar="[NAME[@VERSION]]", help="All versions of a name, or one. [the newest of each]"),
        ] = None,
        *,
        delete: Annotated[bool, typer.Option("--delete", help="Remove this version, and its file.")] = False,
        server: ServerOption = None,
        output: OutputOption = Output.text,
    ) -> None:
        """List registered models, or show one."""
        from api.cli.actions.models import print_registry
        from api.cli.connection import connected

        if delete and (name is None or "@" not in name):
            raise typer.BadParameter("name the version that is to be removed: NAME@VERSION", param_hint="--delete")
        with connected(context, server) as client:
            print_registry(client, name, delete, output is Output.json)
