"""`millrace explain`: the recipe of a spec as two tables, or as one JSON object."""

import sys
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from api.cli import BAD_INPUT
from api.commands import read
from service import Recipe, explain, known_examples

WIDTH = 160
"""Columns where the output is no terminal."""


def print_recipe(spec_file: Path, sets: list[str], examples: int | None, as_json: bool) -> None:
    """Print it, or end with exit status 2."""
    spec = read(spec_file, sets)
    examples = examples or known_examples(spec.data)
    if examples is None:
        told = f"only reading {spec.data.name} tells how many training examples it has; give --examples"
        typer.echo(f"{spec_file}: /data/name: {told}", err=True)
        raise typer.Exit(BAD_INPUT)
    recipe = explain(spec.train, examples)
    if as_json:
        typer.echo(recipe.model_dump_json())
        return
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for table in _tables(recipe):
        console.print(table)


def _tables(recipe: Recipe) -> tuple[Table, Table]:
    numbers = Table("quantity", "value", "formula", "source", box=None)
    for name, quantity in recipe.quantities.items():
        _add(numbers, name, quantity.value, quantity.formula, quantity.source)
    phases = Table("\nphase", "epoch", "examples", "learning rate", "formula", "source", box=None)
    for phase in recipe.phases:
        _add(phases, phase.name, phase.epoch, phase.examples, phase.learning_rate, phase.formula, phase.source)
    return numbers, phases


def _add(table: Table, *cells: float | str | None) -> None:
    told = ("" if cell is None else f"{cell:.8g}" if isinstance(cell, float) else str(cell) for cell in cells)
    table.add_row(*(Text(cell) for cell in told))
