"""`millrace explain`: the recipe of a spec as two tables, or as one JSON object."""

import json
from pathlib import Path

import typer
from rich.table import Table
from rich.text import Text

from api.cli.actions.profile import count_memory, say_memory
from api.cli.actions.specs import read_job
from api.cli.connection import complain
from api.cli.context import BAD_INPUT
from api.cli.display import wide_console
from service import JobSpec, MillraceError, Recipe, explain, known_examples

PAPERS = {
    "paper 1": "Krizhevsky 2014, One weird trick for parallelizing convolutional neural networks",
    "paper 2": "Parallel and distributed deep learning, a course report",
    "paper 3": "Distributed training on a GPU cluster, Barcelona Supercomputing Center",
    "paper 4": "Goyal et al. 2017, Accurate, large minibatch SGD",
}
"""Those that sources call by their numbers."""


def print_recipe(spec_file: Path, sets: list[str], examples: int | None, counts: bool, as_json: bool) -> None:
    """Print it, or end with exit status 2. counts: Build the model, for what a worker needs of memory."""
    spec = read_job(spec_file, sets)
    examples = examples or known_examples(spec.data) or _counted(spec_file, spec)
    recipe = explain(spec.train, examples)
    memory = count_memory(spec) if counts else None
    if as_json:
        needed = {} if memory is None else {"memory": memory.model_dump(mode="json")}
        typer.echo(json.dumps(recipe.model_dump(mode="json") | needed))
        return
    console = wide_console()
    for table in _tables(recipe):
        console.print(table)
    sources = " ".join([*(one.source for one in recipe.quantities.values()), *(one.source for one in recipe.phases)])
    for number, title in PAPERS.items():
        if number in sources:
            console.print(Text(f"{number}: {title}", style="dim"))
    if memory is not None:
        say_memory(memory, spec)
    for warning in recipe.warnings:
        console.print(Text(f"\nwarning: {warning}", style="yellow"))


def _counted(spec_file: Path, spec: JobSpec) -> int:
    """By opening the data, which alone tell it."""
    from service import count_examples

    try:
        return count_examples(spec.data, spec.code)
    except MillraceError as error:
        complain(f"{spec_file}: /data/name: {error}; or give --examples")
        raise typer.Exit(BAD_INPUT) from error


def _tables(recipe: Recipe) -> tuple[Table, Table]:
    numbers = Table("quantity", "value", "formula", "source", box=None)
    for name, quantity in recipe.quantities.items():
        _add(numbers, name, quantity.value, quantity.formula, quantity.source)
    phases = Table("\nphase", "epoch", "examples", "learning rate", "formula", "source", box=None)
    for phase in recipe.phases:
        _add(phases, phase.name, phase.epoch, phase.examples, phase.learning_rate, phase.formula, phase.source)
    return numbers, phases


def _add(table: Table, *cells: float | str | None) -> None:
    texts = ("" if cell is None else f"{cell:.8g}" if isinstance(cell, float) else str(cell) for cell in cells)
    table.add_row(*(Text(cell) for cell in texts))
