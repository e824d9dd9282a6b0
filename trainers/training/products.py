"""Which library makes the products of a run: as its checkpoint says, or as is measured where it begins."""

from dataclasses import replace
from pathlib import Path

from trainers.models.products.choice import Choice
from trainers.models.products.measure import choose
from trainers.training.checkpoint import products_of
from trainers.training.messages import RunLayout
from trainers.training.setup import CHECKED, Setup


def with_products(setup: Setup, layout: RunLayout, table: Path | None = None) -> RunLayout:
    """The layout of a run whose minibatch `check` has tried, with the choice of its products.

    A run that begins from a checkpoint takes the choice in that, where it was measured on such a processor: so its bits
    are those of the run that wrote it, whoever measures.

    Args:
        table: What was measured on this machine before; by default the user's.
    """
    if not setup.replica.products.seen:  # on a GPU, in another precision, or without a large layer
        return layout
    n = setup.spec.batch.per_worker
    rows_of = [(rows * n // min(CHECKED, n), *layer) for rows, *layer in setup.replica.products.seen]
    here = choose({(rows, inputs, outputs) for rows, inputs, outputs in rows_of}, table)
    there = _of_checkpoint(setup)
    if there.processor == here.processor and set(there.measured) >= set(here.measured):
        return replace(layout, products=there)
    return replace(layout, products=here, other_processor=there.processor)


def _of_checkpoint(setup: Setup) -> Choice:
    resume = setup.spec.checkpoint.resume
    return Choice() if resume is None else products_of(setup.whole.get(resume, Path(resume)))
