"""What the commands about finished models do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import typer

import service
from api.cli.connection import complain, connected
from api.cli.context import BAD_INPUT, OK, CliContext
from api.client.client import Client
from api.client.model_calls import Which
from service import MillraceError

Format = Literal["safetensors", "torch.save", "torch.distributed.checkpoint", "huggingface", "torch.export", "onnx"]
COMPUTED = ("torch.export", "onnx")
"""The formats that hold the computation too."""


def export_run(
    context: CliContext, server: str | None, run: str, wanted: tuple[Format | None, Path | None, bool], as_json: bool
) -> int:
    """Export the model of a run directory, or of a job. Returns the exit status."""
    form, target, raw = wanted
    if target is not None and not target.parent.is_dir():
        complain(f"--to: there is no folder {target.parent}")
        return BAD_INPUT
    source = Path(run)
    if not source.exists():
        if source.name != run:
            complain(f"there is no run directory {source}")
            return BAD_INPUT
        with connected(context, server) as client:
            next(client.checkpoints(run), None)  # brings a run directory back that is gone, from storage
            source = Path(client.get(run).run_dir)
    from service import export_model

    try:
        exported = export_model(source, form, target, raw)
    except MillraceError as error:
        complain(str(error))
        return BAD_INPUT
    if as_json:
        typer.echo(exported.model_dump_json())
        return OK
    shape = "x".join(map(str, exported.image_shape))
    typer.echo(f"{exported.path}: {exported.bytes:,} bytes; inputs of {shape} to {exported.num_classes} outputs")
    same = f"its outputs differ by at most {exported.max_difference:.2g}"
    typer.echo(f"Loaded again, {same if form in COMPUTED else 'it has the same bits'}")
    return OK


def fetch(client: Client, job: str, out: Path | None, wanted: tuple[Which, service.FileFormat], as_json: bool) -> None:
    """Write a model of a job to a file. wanted: Which model, and its format."""
    which, form = wanted
    to = out or Path(f"model{service.SUFFIX[form]}")
    client.model(job, to, which, form)
    typer.echo(json.dumps({"path": str(to)}) if as_json else f"The model is in {to}")
