"""Which library makes the products of a run: as its checkpoint says, or as is measured where it begins."""

from dataclasses import replace
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict

from trainers import user_code
from trainers.models.products.choice import Choice
from trainers.models.products.measure import Shape, choose, known_rows, names_of
from trainers.models.products.table import processor_name, usual_table
from trainers.spec import TrainSpec
from trainers.training.checkpoint import products_of
from trainers.training.messages import RunLayout
from trainers.training.setup import CHECKED, Setup, check, set_up


class TunedProduct(BaseModel):
    """A row of the table."""

    model_config = ConfigDict(frozen=True)

    product: str
    """Pass, inputs x outputs and rows."""
    torch_ms: float
    onednn_ms: float
    onednn: bool
    """Whether oneDNN makes it."""


class Tuned(BaseModel):
    """What the table says of a spec's layers on this processor."""

    model_config = ConfigDict(frozen=True)

    processor: str
    table: str
    products: tuple[TunedProduct, ...]
    """None where torch makes them all."""


def with_products(setup: Setup, layout: RunLayout, table: Path | None = None) -> RunLayout:
    """The layout of a run whose minibatch `check` has tried, with the choice of its products.

    A run that begins from a checkpoint takes the choice in that, where it was measured on such a processor: so its bits
    are those of the run that wrote it, whoever measures.

    Args:
        table: What was measured on this machine before; by default the user's.
    """
    shapes = _shapes(setup)
    if not shapes:  # on a GPU, in another precision, or without a large layer
        return layout
    there = _of_checkpoint(setup)
    if there.processor == processor_name() and names_of(shapes) <= set(there.measured):
        return replace(layout, products=there)
    return replace(layout, products=choose(shapes, table), other_processor=there.processor)


def tune_products(spec: TrainSpec, table: Path | None = None, again: bool = False) -> Tuned:
    """Measure the products of a spec's layers ahead of its runs, which then measure nothing.

    Args:
        spec: The job; its minibatch and its threads count.
        table: What was measured on this machine before; by default the user's.
        again: Measure what it has too.

    Raises:
        SpecRejected: As in a run, for data, task, model or device.
    """
    before = torch.get_num_threads()
    try:
        with user_code.on_path(spec.code):
            setup = set_up(spec, None)
            with setup.dataset:
                check(setup)
                known = known_rows(_shapes(setup), table, again)
                processor = processor_name()
    finally:
        torch.set_num_threads(before)
    products = tuple(TunedProduct(product=name, **vars(row)) for name, row in known.items())
    return Tuned(processor=processor, table=str(table or usual_table()), products=products)


def _shapes(setup: Setup) -> set[Shape]:
    """Of the layers of a whole minibatch, after `check` has tried a few of its examples."""
    n = setup.spec.batch.per_worker
    return {(rows * n // min(CHECKED, n), *layer) for rows, *layer in setup.replica.products.seen}  # type: ignore[misc]


def _of_checkpoint(setup: Setup) -> Choice:
    resume = setup.spec.checkpoint.resume
    return Choice() if resume is None else products_of(setup.whole.get(resume, Path(resume)))
