"""The products of a fully connected layer, whichever library makes them."""

import numpy as np
import pytest
import torch
from torch import nn

from trainers.data.batches import Batch
from trainers.models.dropout import replace_dropout
from trainers.models.layout import lay_out
from trainers.models.products import LEAST_WEIGHTS, input_gradient, outputs, weight_gradient
from trainers.models.replica import Replica

SHAPES = [(5, 30, 20), (1, 300, 301), (32, 256, 256), (33, 1029, 1100), (0, 300, 301)]
"""Rows, inputs, outputs; below and above the size from which oneDNN multiplies, in one block and in several."""


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize(("rows", "inputs", "count"), SHAPES)
def test_they_are_the_products_to_float_tolerance(rows: int, inputs: int, count: int) -> None:
    x, weight, bias, dy = numbers(rows, inputs), numbers(count, inputs), numbers(count), numbers(rows, count)
    wide = [tensor.double() for tensor in (x, weight, bias, dy)]
    near = {"rtol": 1e-4, "atol": 1e-4, "check_dtype": False}
    torch.testing.assert_close(outputs(x, weight, bias), wide[0] @ wide[1].T + wide[2], **near)
    torch.testing.assert_close(outputs(x, weight, None), wide[0] @ wide[1].T, **near)
    torch.testing.assert_close(input_gradient(dy, weight), wide[3] @ wide[1], **near)
    into = torch.full((count, inputs), 7.0)
    weight_gradient(dy, x, into)
    torch.testing.assert_close(into, wide[3].T @ wide[0], **near)
    weight_gradient(dy, x, into, add=True)
    torch.testing.assert_close(into, 2 * (wide[3].T @ wide[0]), **near)


@pytest.mark.parametrize("shape", [(6,), (2, 3)])
@pytest.mark.parametrize("width", [30, 300])
def test_the_next_layer_may_work_in_place(shape: tuple[int, ...], width: int) -> None:
    """On rows and on sequences of rows, below and above the size from which oneDNN multiplies."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, 5), nn.Flatten(1))
    images, labels = numbers(*shape, width), torch.zeros(shape[0], dtype=torch.int64)
    expected = nn.functional.cross_entropy(model(images), labels, reduction="sum")
    expected.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    replica = Replica(model, lay_out(model), torch.device("cpu"), replace_dropout(model, 0))
    params = replica.initial_params()
    into = torch.zeros_like(params)
    loss = replica.gradient(params, Batch((images, labels), 0, np.arange(shape[0])), into)
    assert loss.loss == pytest.approx(float(expected.detach()))
    for name, gradient in replica.layout.named(into).items():
        torch.testing.assert_close(gradient, gradients[name], rtol=1e-4, atol=1e-4)
    with replica.evaluating(params, {}) as evaluated:
        found = nn.functional.cross_entropy(evaluated(images), labels, reduction="sum")
    torch.testing.assert_close(found, expected.detach())


def test_the_bits_do_not_depend_on_where_a_vector_lies() -> None:
    """Gradients are written to any 64-byte place in a vector of any alignment."""
    rows, inputs, count = 32, 300, 301
    assert inputs * count > LEAST_WEIGHTS
    x, dy, weight = numbers(rows, inputs), numbers(rows, count), numbers(count, inputs)
    found = []
    for offset in (0, 16, 48, 1024):
        memory = torch.zeros(offset + count * inputs)
        place = memory[offset:].view(count, inputs)
        place.copy_(weight)
        products = [outputs(x, place, None), input_gradient(dy, place)]
        weight_gradient(dy, x, place)
        found.append(torch.cat([*(p.flatten() for p in products), place.flatten()]))
    for other in found[1:]:
        assert torch.equal(found[0], other)
