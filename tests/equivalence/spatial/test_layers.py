"""A convolution or a pooling by rows is the whole one, forward and backward, at every kernel, stride and padding."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from trainers.algorithms.spatial import exchange
from trainers.algorithms.spatial.exchange import RowExchange
from trainers.algorithms.spatial.layers import RowModel
from trainers.algorithms.spatial.rows import Window, rows_of
from trainers.collectives.local import local_collectives
from trainers.collectives.protocol import Collectives
from trainers.links.local import LocalWorld

EXAMPLES, WIDTH = 2, 9


@st.composite
def layers(draw: st.DrawFn) -> nn.Module:
    kernel, dilation = draw(st.integers(1, 7)), draw(st.sampled_from([1, 1, 1, 2]))
    stride = draw(st.integers(1, 4))
    kind = draw(st.sampled_from(["convolution", "max", "average"]))
    if kind == "convolution":
        sizes, padding = (kernel, 3), draw(st.integers(0, kernel))
        return nn.Conv2d(2, 3, sizes, (stride, 1), (padding, 1), (dilation, 1), bias=draw(st.booleans()))
    padding = draw(st.integers(0, kernel // 2))
    if kind == "max":
        return nn.MaxPool2d(kernel, stride, padding, dilation if dilation * (kernel - 1) < WIDTH else 1)
    return nn.AvgPool2d(kernel, stride, padding)


def by_rows(layer: nn.Module, x: Tensor, size: int) -> tuple[list[Tensor], Tensor, dict[str, Tensor], list[int]]:
    """Outputs of each worker's rows, the gradient of all of the input, those of the parameters, and the halo bytes of
    each worker. Of the output's sum, each place of which counts by its number."""
    world = LocalWorld()
    members = local_collectives(world, size)

    def body(collectives: Collectives) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        own = nn.Sequential(copy.deepcopy(layer))
        model = RowModel(own, x.shape[2])
        rows = rows_of(x.shape[2], collectives.rank, size)
        mine = x[:, :, rows.start : rows.stop].clone().requires_grad_()
        counts = [EXAMPLES if k == 0 else 0 for k in range(size)]
        travels = RowExchange(collectives, counts)
        y = model.rows(mine, travels.through, travels.normalised)
        first = rows_of(model.features_height, collectives.rank, size).start
        (y * numbers(y, first)).sum().backward()
        return y.detach(), mine.grad, {name: p.grad for name, p in own[0].named_parameters()}

    found = world.run([lambda member=member: body(member) for member in members])
    outputs, inputs, parameters = zip(*found, strict=True)
    summed = {name: sum(each[name] for each in parameters) for name in parameters[0]}
    return list(outputs), torch.cat(inputs, 2), summed, [m.meter.counted.halo_bytes for m in members]


def numbers(y: Tensor, first: int) -> Tensor:
    """A number for each row of an output that begins with row `first`, and for each column."""
    return torch.arange(first, first + y.shape[2]).view(-1, 1) + 0.1 * torch.arange(y.shape[3])


def whole(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Plain torch."""
    own, x = copy.deepcopy(layer), x.clone().requires_grad_()
    y = own(x)
    (y * numbers(y, 0)).sum().backward()
    return y.detach(), x.grad, {name: p.grad for name, p in own.named_parameters()}


@settings(max_examples=80, deadline=None)
@given(layer=layers(), height=st.integers(4, 40), size=st.integers(1, 5), seed=st.integers(0, 99))
def test_outputs_and_gradients_are_those_of_the_whole_layer(
    layer: nn.Module, height: int, size: int, seed: int
) -> None:
    window = window_of(layer, height)
    assume(window is not None and window.can_be_shared(height, size))
    x = torch.randn(EXAMPLES, 2, height, WIDTH, generator=torch.Generator().manual_seed(seed))
    outputs, inputs, parameters, halo_bytes = by_rows(layer, x, size)
    y, dx, dw = whole(layer, x)
    torch.testing.assert_close(torch.cat(outputs, 2), y)
    torch.testing.assert_close(inputs, dx)
    for name, gradient in dw.items():
        torch.testing.assert_close(parameters[name], gradient, rtol=1e-4, atol=1e-3)
    row = 4 * EXAMPLES * 2 * WIDTH
    assert sum(halo_bytes) == 2 * row * window.halo_rows(height, size)  # there, and their gradients back


def window_of(layer: nn.Module, height: int) -> Window | None:
    """None where nothing is left of an image of this height, or of its width."""
    reach = torch.zeros(1, 2, height, WIDTH)
    try:
        layer(reach)
    except RuntimeError:
        return None
    model = RowModel(nn.Sequential(layer), height)
    return next(iter(model.layers.values())).window


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_is_over_all_rows(size: int, affine: bool) -> None:
    norm = nn.BatchNorm2d(2, affine=affine, momentum=0.3)
    for parameter in norm.parameters():
        nn.init.uniform_(parameter, 0.5, 1.5)
    layer = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), norm)
    x = torch.randn(EXAMPLES, 2, 7, WIDTH)
    outputs, inputs, parameters, _ = by_rows(layer, x, size)
    y, dx, dw = whole(layer, x)
    torch.testing.assert_close(torch.cat(outputs, 2), y, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(inputs, dx, rtol=1e-3, atol=1e-4)
    for name, gradient in dw.items():
        torch.testing.assert_close(parameters[name], gradient, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("kernel", "size"), [(3, 2), (3, 4), (5, 3), (7, 2), (1, 4)])
def test_halos_of_a_kernel_that_keeps_the_height_are_half_of_the_rest(kernel: int, size: int) -> None:
    """(k - 1)/2 rows go either way across each of the K - 1 borders."""
    window = Window(kernel, padding=kernel // 2)
    assert window.halo_rows(24, size) == 2 * (size - 1) * (kernel - 1) // 2
    halos = window.halos(24, size)
    for k, seen in enumerate(halos):
        assert {len(rows) for j, rows in enumerate(seen) if abs(j - k) == 1} == {(kernel - 1) // 2}


@pytest.mark.parametrize(
    ("window", "height", "rows"),
    [
        (Window(11, 4, 2), 224, 55),  # AlexNet's first convolution, of stride 4
        (Window(3, 2), 55, 27),  # its overlapping pooling
        (Window(5, padding=2), 27, 27),
        (Window(3, padding=2, dilation=2), 13, 13),
    ],
)
def test_what_each_output_row_sees(window: Window, height: int, rows: int) -> None:
    assert window.outputs(height) == rows
    for row in range(rows):
        first = row * window.stride - window.padding
        assert window.seen(range(row, row + 1)) == range(first, first + window.dilation * (window.kernel - 1) + 1)
    assert window.seen(range(0)) == range(0)


def test_a_part_that_is_thinner_than_its_halo_cannot_be_shared() -> None:
    window = Window(5, padding=2)
    assert window.can_be_shared(8, 4)  # of two rows each
    assert not window.can_be_shared(7, 5)  # two neighbours would have one row each, and need two of each other
    assert not window.can_be_shared(3, 4)


def test_the_tests_above_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """With zeros in the place of halos."""
    given = exchange._given

    def nothing(*args: Any) -> list[Tensor]:
        found, move, collectives = given(*args), args[4], args[5]
        return [rows if k == collectives.rank or not move.is_halo else rows * 0 for k, rows in enumerate(found)]

    layer, x = nn.Conv2d(2, 3, 3, padding=1), torch.randn(EXAMPLES, 2, 8, WIDTH)
    outputs, inputs, _, _ = by_rows(layer, x, 2)
    monkeypatch.setattr(exchange, "_given", nothing)
    without, without_gradients, _, _ = by_rows(layer, x, 2)
    assert not torch.allclose(torch.cat(outputs, 2), torch.cat(without, 2), atol=1e-2)
    assert not torch.allclose(inputs, without_gradients, atol=1e-2)


def test_a_backward_pass_keeps_no_second_copy_of_a_workers_rows() -> None:
    """Of what a layer sees autograd keeps the halos, and otherwise the tensor that the layer before keeps too."""
    model = RowModel(nn.Sequential(nn.ReLU(), nn.Conv2d(2, 2, 3, padding=1)), 64)
    (collectives,) = local_collectives(LocalWorld(), 1)
    x = torch.randn(EXAMPLES, 2, 64, WIDTH, requires_grad=True)
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        travels = RowExchange(collectives, [EXAMPLES])
        model.rows(x, travels.through, travels.normalised)
    assert [tensor.shape[2] for tensor in kept if tensor.ndim == 4 and tensor.shape[2] >= 64] == [64]  # of the ReLU
