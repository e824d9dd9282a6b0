"""The command that fetches finished models."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

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


WhichOption = Annotated[ModelName, typer.Option(help="The finished, the best, or an average's raw one.")]


def add_models(app: typer.Typer, context: CliContext) -> None:
    """Add it."""
    _add_model(app, context)


def _add_model(app: typer.Typer, context: CliContext) -> None:
    @app.command()
    def model(
        job: JobId,
        *,
        out: Annotated[Path | None, typer.Option(help="Where it is written. [model.safetensors]")] = None,
        which: WhichOption = ModelName.model,
        form: Annotated[FormatName, typer.Option("--format", help="In which format.")] = FormatName.safetensors,
        server: ServerOption = None,
        output: OutputOption = Output.text,
    ) -> None:
        """Fetch the finished model of a job."""
        from api.cli.actions.models import fetch
        from api.cli.connection import connected

        with connected(context, server) as client:
            fetch(client, job, out, (which.value, form.value), output is Output.json)
