"""What the commands about finished models do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal

import typer
from rich.table import Table
from rich.text import Text

import service
from api.cli.connection import complain, connected
from api.cli.context import BAD_INPUT, OK, CliContext
from api.cli.display import id_column, wide_console
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
    if exported.mean:
        mean, std = (" ".join(f"{value:.6g}" for value in values) for values in (exported.mean, exported.std))
        typer.echo(f"Images: scaled to 0..1, less {mean}, divided by {std}, channel by channel")
    same = f"its outputs differ by at most {exported.max_difference:.2g}"
    typer.echo(f"Loaded again, {same if form in COMPUTED else 'it has the same bits'}")
    return OK


def fetch(
    client: Client, job: str, out: Path | None, wanted: tuple[Which, service.FileFormat | None], as_json: bool
) -> None:
    """Write a model of a job, or a registered one, to a file. wanted: Which model of the job, and its format; none: the
    one whose ending the file has, and for any other ending safetensors."""
    which, form = wanted
    if form is None:
        endings: dict[str, service.FileFormat] = {ending: name for name, ending in service.SUFFIX.items()}
        form = endings.get(out.suffix if out else "", "safetensors")
    to = out or Path(f"model{service.SUFFIX[form]}")
    if "@" not in job:
        client.model(job, to, which, form)
    elif which != "model" or form != "safetensors":
        raise typer.BadParameter(
            f"a registered model is one file, of safetensors; `millrace export {to}` writes others"
        )
    else:
        client.download_version(job, to)
    typer.echo(json.dumps({"path": str(to)}) if as_json else f"The model is in {to}")


def print_registry(client: Client, name: str | None, delete: bool, as_json: bool) -> None:
    """Print registered models, or one, or remove it. name: None, `digits` or `digits@3`."""
    if name is None or "@" not in name:
        found = [*client.versions(name, latest=name is None)]
        if as_json:
            typer.echo(json.dumps({"versions": [one.model_dump(mode="json") for one in found]}))
        else:
            wide_console().print(_version_table(found))
        return
    one = client.version(name)
    if delete:
        client.remove_version(one.id)
        typer.echo(json.dumps({"id": one.id, "deleted": True}) if as_json else f"{one.id} is removed.")
    elif as_json:
        typer.echo(one.model_dump_json())
    else:
        table = Table(box=None, show_header=False)
        for key, value in _rows(one).items():
            table.add_row(Text(key, style="bold"), Text(value))
        wide_console().print(table)


def _version_table(found: Sequence[service.ModelVersion]) -> Table:
    columns = ("model", "of", "metrics", "job", "user", "registered", "notes")
    table = Table(id_column(columns[0], (one.id for one in found)), *columns[1:], box=None)
    for one in found:
        rows = _rows(one)
        table.add_row(*(Text(rows[column]) for column in columns))
    return table


def _rows(one: service.ModelVersion) -> dict[str, str]:
    metrics = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in one.facts["metrics"].items())
    return {
        "model": one.id,
        "of": f"{one.facts['model']} on {one.facts['data']}",
        "metrics": metrics,
        "job": one.job + ("" if one.which == "model" else f" ({one.which})"),
        "user": one.user,
        "registered": datetime.fromtimestamp(one.created).isoformat(" ", "minutes"),
        "notes": one.notes,
        "size": service.size_words(one.bytes),
        "SHA-256": one.sha256,
    }
