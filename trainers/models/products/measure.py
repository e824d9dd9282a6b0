"""Measures once on a machine which library makes the products of a layer faster, and keeps it in the table."""

import itertools
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from trainers.models.products.choice import PASSES, Choice, product_name
from trainers.models.products.multiply import COPIED_WEIGHTS, Products, through
from trainers.models.products.sink import Sink, into_sink
from trainers.models.products.table import Measured, Rows, processor_name, row_name, rows_of, usual_table

ROUNDS, LEAST_S = 5, 0.008
"""Each library is timed in so many rounds, in turns, and for at least so long a round."""
AHEAD = 0.97
"""oneDNN is taken where its time is below this part of the other's: of two that are alike, torch's own."""
LAYER_AHEAD = 0.99
"""And a small layer is taken from torch where its whole step is below this part of torch's."""

Shape = tuple[int, int, int]
"""Rows, inputs, outputs of a fully connected layer."""


def choose(shapes: Collection[Shape], table: Path | None = None) -> Choice:
    """The choice for these layers: from the table, and measured where it has none.

    Where no table can be written the choice is measured anew each time.
    """
    layers = _layers(shapes)
    if not layers:
        return Choice()
    known = known_rows(shapes, table)
    names = {name: row_name(name, rows) for layer, rows in layers.items() for name in _names(*layer)}
    return Choice(
        processor_name(), tuple(sorted(names)), tuple(sorted(name for name, row in names.items() if known[row].onednn))
    )


def known_rows(shapes: Collection[Shape], table: Path | None = None, again: bool = False) -> Rows:
    """The rows of the table for these layers, measured where it has none, or `again`. table: by default the user's."""
    found: Rows = {}
    with rows_of(processor_name(), table or usual_table()) as (known, keep):
        for layer, rows in _layers(shapes).items():
            names = [row_name(name, rows) for name in _names(*layer)]
            if again or any(name not in known for name in names):
                known |= dict(zip(names, measure_layer(rows, *layer), strict=True))
                keep(known)
            found |= {name: known[name] for name in names}
    return found


def names_of(shapes: Collection[Shape]) -> set[str]:
    """The products of these layers."""
    return {name for layer in _layers(shapes) for name in _names(*layer)}


def _layers(shapes: Collection[Shape]) -> dict[tuple[int, int], int]:
    """(inputs, outputs) -> rows, the most of a layer that is used in several ways."""
    return {shape[1:]: shape[0] for shape in sorted(shapes)}


def _names(inputs: int, outputs: int) -> list[str]:
    return [product_name(which, inputs, outputs) for which in range(len(PASSES))]


def measure_layer(rows: int, inputs: int, outputs: int) -> tuple[Measured, ...]:
    """Measure the three products of a layer, and say which of them oneDNN is to make.

    A small layer that torch trains by itself has no functions in Python, and its step is the measure of whether what
    oneDNN saves is worth them.
    """
    times = [product_seconds(which, rows, inputs, outputs) for which in range(len(PASSES))]
    faster = [onednn < AHEAD * torchs for torchs, onednn in times]
    is_left_to_torch = inputs * outputs < COPIED_WEIGHTS
    if is_left_to_torch and any(faster) and not _is_step_faster(faster, rows, inputs, outputs):
        faster = [False] * len(PASSES)
    return tuple(
        Measured(is_so, round(1000 * torchs, 4), round(1000 * onednn, 4))
        for is_so, (torchs, onednn) in zip(faster, times, strict=True)
    )


def product_seconds(which: int, rows: int, inputs: int, outputs: int) -> tuple[float, float]:
    """Of one product, through torch's own library and through oneDNN. which: index in PASSES."""
    return _in_turns(*(_product(which, rows, inputs, outputs, onednn) for onednn in (False, True)))


def _is_step_faster(onednn: Sequence[bool], rows: int, inputs: int, outputs: int) -> bool:
    """Whether a layer's forward and backward pass are faster with these products of oneDNN than torch's own are."""
    names = tuple(_names(inputs, outputs))
    mixed = Products(Choice(measured=names, onednn=tuple(itertools.compress(names, onednn))))
    torchs, ours = _in_turns(
        layer_step(through(False, [(inputs, outputs)]), rows, inputs, outputs),
        layer_step(mixed, rows, inputs, outputs),
    )
    return ours < LAYER_AHEAD * torchs


def _in_turns(one: Callable[[], object], other: Callable[[], object]) -> tuple[float, float]:
    """The least seconds of each over the rounds."""
    times = [(_seconds(one), _seconds(other)) for _ in range(ROUNDS)]
    return min(first for first, _ in times), min(second for _, second in times)


def layer_step(products: Products, rows: int, inputs: int, outputs: int) -> Callable[[], object]:
    """A layer's forward and backward pass as a replica makes them."""
    layer, x, dy = nn.Linear(inputs, outputs, bias=False), torch.ones(rows, inputs), torch.ones(rows, outputs)
    x.requires_grad_()
    into = torch.empty(outputs, inputs)
    sink = Sink({id(layer.weight): into}, set())
    forward = into_sink(_Alone(sink, products))

    def step() -> None:
        sink.written.clear()
        forward(layer, x).backward(dy)  # type: ignore[no-untyped-call]
        if layer.weight.grad is not None:
            into.copy_(layer.weight.grad)
        layer.weight.grad = x.grad = None

    return step


@dataclass(frozen=True)
class _Alone:
    """Who trains a layer that has no model around it."""

    sink: Sink
    products: Products


def _product(which: int, rows: int, inputs: int, outputs: int, onednn: bool) -> Callable[[], object]:
    products: Products = through(onednn, [(inputs, outputs)])
    x, dy, weight = torch.ones(rows, inputs), torch.ones(rows, outputs), torch.full((outputs, inputs), 0.5)
    into: Tensor = torch.empty(outputs, inputs) if PASSES[which] == "weight gradient" else weight
    calls: tuple[Callable[[], object], ...] = (
        lambda: products.outputs(x, weight, None),
        lambda: products.input_gradient(dy, weight),
        lambda: products.weight_gradient(dy, x, into),
    )
    return calls[which]


def _seconds(product: Callable[[], object]) -> float:
    """Of the quickest call among as many as fill LEAST_S, after one that is not counted: where others compute on the
    machine, most calls are interrupted."""
    product()
    quickest, began = float("inf"), time.perf_counter()
    while (begun := time.perf_counter()) - began < LEAST_S:
        product()
        quickest = min(quickest, time.perf_counter() - begun)
    return quickest
