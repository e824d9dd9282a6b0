"""`millrace tune`: the table of the products of a job's layers, measured ahead of its runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table

from api.cli.actions.specs import read_job
from api.cli.connection import complain
from api.cli.context import BAD_INPUT
from api.cli.display import wide_console
from service import MillraceError

if TYPE_CHECKING:
    from service import Tuned

NOTHING = (
    "Nothing to measure: torch itself makes the products of layers below 16 K weights, and all of them on a GPU, in 16 "
    "bits and of a model that is compiled"
)


def tune_spec(spec_file: Path, sets: list[str], again: bool, as_json: bool) -> None:
    """Measure and print, or end with exit status 2."""
    spec = read_job(spec_file, sets)
    from service import tune_products

    try:
        with Console(stderr=True).status("measures which library multiplies faster"):
            found = tune_products(spec.train, again=again)
    except MillraceError as error:
        complain(str(error))
        raise typer.Exit(BAD_INPUT) from error
    if as_json:
        typer.echo(found.model_dump_json())
    elif found.products:
        _show(found)
    else:
        typer.echo(NOTHING)


def _show(found: Tuned) -> None:
    table = Table("product", box=None)
    for heading in ("torch, ms", "oneDNN, ms"):
        table.add_column(heading, justify="right")
    table.add_column("through")
    for row in found.products:
        table.add_row(
            row.product,
            f"{row.torch_ms:.4g}",
            f"{row.onednn_ms:.4g}",
            "oneDNN" if row.onednn else "torch's own library",
        )
    typer.echo(found.processor)
    wide_console().print(table)
    typer.echo(f"Kept in {found.table}")
