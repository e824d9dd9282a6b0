"""The products of a fully connected layer, whichever library makes them."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from trainers.data.batches import Batch
from trainers.models.dropout import replace_dropout
from trainers.models.layout import lay_out
from trainers.models.products import measure, multiply
from trainers.models.products.choice import LEAST_WEIGHTS, Choice, product_name
from trainers.models.products.measure import choose, known_rows, measure_layer, product_seconds
from trainers.models.products.multiply import Products, through
from trainers.models.products.table import Measured, processor_name
from trainers.models.replica import Replica

SHAPES = [(5, 30, 20), (1, 300, 301), (32, 256, 256), (33, 1029, 1100), (0, 300, 301)]
"""Rows, inputs, outputs; below and above the size from which oneDNN multiplies, in one block and in several."""


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize(("rows", "inputs", "count"), SHAPES)
def test_they_are_the_products_to_float_tolerance(rows: int, inputs: int, count: int, onednn: bool) -> None:
    products = through(onednn, [(inputs, count)])
    x, weight, bias, dy = numbers(rows, inputs), numbers(count, inputs), numbers(count), numbers(rows, count)
    wide = [tensor.double() for tensor in (x, weight, bias, dy)]
    near = {"rtol": 1e-4, "atol": 1e-4, "check_dtype": False}
    torch.testing.assert_close(products.outputs(x, weight, bias), wide[0] @ wide[1].T + wide[2], **near)
    torch.testing.assert_close(products.outputs(x, weight, None), wide[0] @ wide[1].T, **near)
    torch.testing.assert_close(products.input_gradient(dy, weight), wide[3] @ wide[1], **near)
    into = torch.full((count, inputs), 7.0)
    products.weight_gradient(dy, x, into)
    torch.testing.assert_close(into, wide[3].T @ wide[0], **near)
    products.weight_gradient(dy, x, into, add=True)
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


@pytest.mark.parametrize("onednn", [True, False])
def test_the_bits_do_not_depend_on_where_a_vector_lies(onednn: bool) -> None:
    """Gradients are written to any 64-byte place in a vector of any alignment."""
    rows, inputs, count = 32, 300, 301
    assert inputs * count > LEAST_WEIGHTS
    library = through(onednn, [(inputs, count)])
    x, dy, weight = numbers(rows, inputs), numbers(rows, count), numbers(count, inputs)
    found = []
    for offset in (0, 16, 48, 1024):
        memory = torch.zeros(offset + count * inputs)
        place = memory[offset:].view(count, inputs)
        place.copy_(weight)
        products = [library.outputs(x, place, None), library.input_gradient(dy, place)]
        library.weight_gradient(dy, x, place)
        found.append(torch.cat([*(p.flatten() for p in products), place.flatten()]))
    for other in found[1:]:
        assert torch.equal(found[0], other)


def test_each_pass_goes_through_the_library_that_the_choice_names(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[torch.Size] = []
    onednn = multiply._onednn
    monkeypatch.setattr(multiply, "_onednn", lambda x, w, b: calls.append(w.shape) or onednn(x, w, b))
    measured = tuple(product_name(which, 256, 300) for which in range(3))
    products = Products(Choice("here", measured, (product_name(1, 256, 300),)))
    x, weight, dy = numbers(4, 256), numbers(300, 256), numbers(4, 300)
    products.outputs(x, weight, None)
    products.weight_gradient(dy, x, torch.empty(300, 256))
    assert calls == []
    products.input_gradient(dy, weight)
    assert calls == [torch.Size([256, 300])]
    products.input_gradient(dy[:, :150], weight[:150])  # half of the layer, as `hybrid` divides it
    assert len(calls) == 2
    products.outputs(numbers(4, 700), numbers(301, 700), None)  # another layer, which nobody measured
    assert len(calls) == 3


def test_what_was_measured_is_kept_and_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []
    rows = (Measured(True, 2.0, 1.0), Measured(False, 1.0, 2.0), Measured(True, 2.0, 1.0))
    monkeypatch.setattr(measure, "measure_layer", lambda *layer: asked.append(layer) or rows)
    table = tmp_path / "cache" / "products.json"
    found = choose({(12, 256, 300), (6, 256, 300)}, table)
    assert found.processor == processor_name()
    assert found.onednn == ("outputs 256x300", "weight gradient 256x300")
    assert len(found.measured) == 3
    assert asked == [(12, 256, 300)]
    assert choose({(12, 256, 300)}, table) == found
    assert len(asked) == 1
    assert choose({(99, 256, 300)}, table) == found  # of other rows, for which another library may be faster
    assert asked[1:] == [(99, 256, 300)]
    assert known_rows({(12, 256, 300)}, table, again=True)["outputs 256x300, 12 rows"] == rows[0]
    assert len(asked) == 3
    for damaged in ('{"torn', table.read_text().replace('"torch_ms"', '"ms"')):
        table.write_text(damaged)
        assert choose({(12, 256, 300)}, table) == found
    assert len(asked) == 5


def test_what_was_measured_on_another_machine_is_kept_and_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "measure_layer", lambda *layer: (Measured(True, 2.0, 1.0),) * 3)
    table, here = tmp_path / "products.json", processor_name()
    assert len(choose({(12, 256, 300)}, table).onednn) == 3
    for name in (here.replace("float32", "bfloat16"), here.replace(" thread", "0 thread"), f"{here}, a later library"):
        table.write_text(table.read_text().replace(here, name))
        monkeypatch.setattr(measure, "measure_layer", lambda *layer: (Measured(False, 1.0, 2.0),) * 3)
        assert choose({(12, 256, 300)}, table).onednn == ()
        kept = json.loads(table.read_text())
        assert {row["onednn"] for row in kept.pop(here).values()} == {False}
        assert {row["onednn"] for row in kept.popitem()[1].values()} == {True}
        table.write_text(json.dumps({here: json.loads(table.read_text())[name]}))


def test_a_machine_is_named_with_all_that_its_figures_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    name = processor_name()
    assert f"torch {torch.__version__}, MKL 2" in name or "MKL" not in torch.__config__.show()
    assert re.search(r", oneDNN \d+\.\d+.*, \d+ threads?, float32$", name)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    assert processor_name() != name


def test_a_table_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert len(choose({(2, 128, 128)}, tmp_path / "file" / "products.json").measured) == 3
    assert choose(set(), tmp_path / "file" / "products.json") == Choice()


def test_the_measurement_tells_a_slow_library(monkeypatch: pytest.MonkeyPatch) -> None:
    onednn = multiply._onednn

    def slow(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None) -> torch.Tensor:
        for _ in range(50):
            onednn(x, w, b)
        return onednn(x, w, b)

    monkeypatch.setattr(multiply, "_onednn", slow)
    times = [product_seconds(which, 8, 256, 256) for which in range(3)]
    assert all(theirs > torchs for torchs, theirs in times)


@pytest.mark.parametrize(
    ("step_s", "width", "is_taken"), [(0.0041, 256, False), (0.0035, 256, True), (0.0041, 600, True)]
)
def test_a_small_layer_is_taken_from_torch_where_its_step_gets_faster(
    step_s: float, width: int, is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large one is trained by our own functions anyway."""
    product = [0.001, 0.0009] * measure.ROUNDS
    times = iter([*product * 3, *[0.004, step_s] * measure.ROUNDS])
    monkeypatch.setattr(measure, "_seconds", lambda call: next(times))
    assert measure_layer(8, width, 600) == (Measured(is_taken, 1.0, 0.9),) * 3


@pytest.mark.parametrize("shape", [(6,), (2, 3)])
def test_a_small_layer_has_the_same_bits_whoever_places_its_gradient(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One layer is used twice, so that its gradients are added."""
    torch.manual_seed(0)
    twice = nn.Linear(48, 48)
    model = nn.Sequential(twice, nn.ReLU(), twice, nn.Linear(48, 5, bias=False), nn.Flatten(1))
    batch = Batch((numbers(*shape, 48), torch.zeros(shape[0], dtype=torch.int64)), 0, np.arange(shape[0]))
    replica = Replica(model, lay_out(model), torch.device("cpu"), replace_dropout(model, 0))
    params, found = replica.initial_params(), list[torch.Tensor]()
    for copied in (multiply.COPIED_WEIGHTS, 0):
        monkeypatch.setattr(multiply, "COPIED_WEIGHTS", copied)
        found.append(torch.full_like(params, float("nan")))
        replica.gradient(params, batch, found[-1])
        assert bool(replica.sink.written) == (copied == 0)  # from Python only where no layer is small
    for name, gradient in replica.layout.named(found[0]).items():
        assert torch.equal(gradient, replica.layout.named(found[1])[name])


def test_a_replica_multiplies_as_it_is_told_and_so_do_its_twins() -> None:
    model = nn.Sequential(nn.Linear(200, 200), nn.Linear(200, 3))
    replica = Replica(model, lay_out(model), torch.device("cpu"), replace_dropout(model, 0))
    choice = Choice("here", ("outputs 200x200",), ())
    replica.multiply_as(choice)
    assert replica.twin().products is replica.products
    batch = Batch((numbers(6, 200), torch.zeros(6, dtype=torch.int64)), 0, np.arange(6))
    params = replica.initial_params()
    replica.gradient(params, batch, torch.zeros_like(params))
    assert replica.products.choice == choice
    assert replica.products.seen == {(6, 200, 200)}  # the small layer is not worth a measurement
