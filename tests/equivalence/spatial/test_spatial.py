"""`spatial` equals serial SGD on the model that nobody has divided."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.equivalence.harness import RECIPES, Run, run_all_reduce, serial, step_batches
from tests.equivalence.hybrid_net import assert_same_bits_at_once, distance
from tests.equivalence.spatial import nets
from tests.equivalence.spatial.nets import Alex, Normalised, Plain, Residual, net, spec
from tests.local_runs import LocalRun
from trainers.algorithms.spatial import exchange
from trainers.algorithms.spatial.layers import RowModel
from trainers.algorithms.spatial.rows import Window
from trainers.errors import SpecRejected
from trainers.models.config import ModelSpec
from trainers.models.registry import build_model
from trainers.spec import TrainSpec, field_errors
from trainers.training.checkpoint import read_checkpoint
from trainers.training.setup import check, set_up

PAIR = (("spatial", 2), ("sync", 1))
LARGER = {"data": {"name": "digits", "limit": 60, "random_resized_crop": 64}, "epochs": 1}


def written(run: Run) -> Tensor:
    return serial(run, step_batches(run), "mean")


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", [Plain, Residual])
def test_any_number_of_workers_equals_serial_sgd(kind: type[nn.Module], count: int) -> None:
    run = Run(spec(5, count), net(kind))
    assert distance(run_all_reduce(run).params, written(run)) < 1e-5


@pytest.mark.parametrize("count", [2, 3])
def test_alexnets_stride_and_overlapping_poolings(count: int) -> None:
    run = Run(spec(count, count, **LARGER), net(Alex))
    assert distance(run_all_reduce(run).params, written(run)) < 1e-5


@pytest.mark.parametrize("until", [None, "norm2"])
def test_batch_norm_is_over_the_whole_examples_of_a_virtual_worker(until: str | None) -> None:
    """By rows, and after them."""
    run = Run(spec(3, 2, {"until": until}), net(Normalised))
    assert distance(run_all_reduce(run).params, written(run)) < 1e-4


def test_running_statistics_are_those_of_sync(tmp_path: Path) -> None:
    """Of each virtual worker."""
    model = {"model": f"{nets.__name__}:normalised"}
    found, expected = (
        read_checkpoint(LocalRun(spec(3, count, {"name": name}, **model), tmp_path / name).train()).buffers
        for name, count in PAIR
    )
    assert found.keys() == expected.keys() == {0, 1, 2}
    for rank, buffers in expected.items():
        for name, value in buffers.items():
            torch.testing.assert_close(found[rank][name], value, rtol=1e-3, atol=1e-4)


def test_the_tests_above_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other dropout masks; zeros in the place of halos."""
    run = Run(spec(5, 2), net(Plain))
    expected = written(run)
    other = Run(spec(5, 2, seed=4), net(Plain))
    other.net = lambda seed: net(Plain)(3)
    assert distance(run_all_reduce(other).params, expected) > 1e-2
    given = exchange._given

    def nothing(*args: Any) -> list[Tensor]:
        found, move, collectives = given(*args), args[4], args[5]
        return [rows if k == collectives.rank or not move.is_halo else rows * 0 for k, rows in enumerate(found)]

    monkeypatch.setattr(exchange, "_given", nothing)
    assert distance(run_all_reduce(run).params, expected) > 1e-3


@pytest.mark.parametrize("recipe", list(RECIPES)[:3])
def test_with_any_recipe_it_equals_serial_sgd(recipe: str) -> None:
    run = Run(spec(3, 2, **RECIPES[recipe]), net(Plain))
    assert distance(run_all_reduce(run).params, written(run)) < 1e-5


@pytest.mark.parametrize(
    "fields",
    [{"clip": {"norm": 0.3}}, {"ema": {"decay": 0.9}}, {"optimizer": {"name": "adamw", "lr": 0.01}}, {"batch": 1}],
    ids=str,
)
def test_other_options_give_what_sync_gives(fields: dict[str, object]) -> None:
    found, sync = (Run(spec(3, count, {"name": name}, **fields), net(Residual)) for name, count in PAIR)
    assert distance(run_all_reduce(found).params, run_all_reduce(sync).params) < 1e-4


@pytest.mark.parametrize("frozen", ["features.0*", "features*", ["features*", "norm*"], "fc*"], ids=str)
def test_with_frozen_layers(frozen: str | list[str]) -> None:
    groups = {"optimizer": {"name": "sgd", "lr": 0.05, "groups": [{"match": frozen, "frozen": True}]}}
    run = Run(spec(3, 2, **groups), net(Plain))
    assert distance(run_all_reduce(run).params, written(run)) < 1e-5


@pytest.mark.parametrize("model", ["lenet5", "convnet", "convnet_two_columns"])
def test_models_by_name(model: str) -> None:
    train = spec(3, 2, epochs=1, model=model)
    run = Run(train, lambda seed: build_model(train.model, 10, (1, 8, 8), seed))
    assert distance(run_all_reduce(run).params, written(run)) < 1e-5


def test_a_class_for_each_pixel_is_computed_by_rows_to_the_end() -> None:
    """Nothing is left for whole examples but the loss."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 5, 1))
    divided = RowModel(model, 8)
    assert [node.op for node in divided.by_examples] == ["output"]
    x = torch.randn(2, 4, 3, 8)
    assert torch.equal(divided.rest(x), x)


def test_the_losses_reported_are_those_of_the_examples() -> None:
    reports = [run_all_reduce(Run(spec(5, count, epochs=1), net(Plain))).reports for count in (1, 3)]
    alone, shared = (sum(report.total.loss for report in each) for each in reports)
    assert alone == pytest.approx(shared, rel=1e-5)
    assert sum(report.examples for report in reports[1]) == 101


@pytest.mark.parametrize(("virtual", "count"), [(3, 3), (5, 2), (4, 1)])
def test_what_travels_is_what_the_formula_says(virtual: int, count: int) -> None:
    """Of kn examples in a step: of images and last maps all rows but the owner's, and the maps' gradients; of each
    layer's halos, and, but for the first layer's, their gradients; what batch norm sums up; one vector of gradients a
    worker."""
    fields = {"batch": 6, "data": {"name": "digits", "limit": 6 * virtual}}

    def floats(run: Run) -> tuple[float, float]:
        """In a step, all that is sent and the halos."""
        one, two = (run_all_reduce(Run(run.spec.model_copy(update={"epochs": n}), net(Plain))).traffic for n in (1, 2))
        return (two.sent_bytes - one.sent_bytes) / 4, (two.halo_bytes - one.halo_bytes) / 4

    run = Run(spec(virtual, count, **fields), net(Plain))
    owners = [next(k for k in range(count) if v in run.ranks(k, count)) for v in range(virtual)]

    def others_rows(height: int) -> int:
        """Of one example of each virtual worker."""
        mine = [height * (k + 1) // count - height * k // count for k in range(count)]
        return sum(height - mine[owner] for owner in owners)

    halos = 0
    layers = [(Window(3, padding=1), 8, 8), (Window(3, 2, 1), 8, 32), (Window(3, padding=1), 4, 16)]
    for index, (window, height, width) in enumerate(layers):  # width: elements of a row, in all channels
        halos += (1 if index == 0 else 2) * virtual * 6 * window.halo_rows(height, count) * width
    if count > 1:  # of layers that keep the height, one row goes either way across each border
        assert layers[0][0].halo_rows(8, count) == layers[2][0].halo_rows(4, count) == 2 * (count - 1)
    images, maps = 6 * others_rows(8) * 8, 2 * 6 * others_rows(4) * 24
    norms = virtual * 2 * (count - 1) * (6 + 6 + 2 * 6)  # means, variances, and two sums for the gradient
    gradients = 2 * (count - 1) * run.layout.numel
    assert floats(run) == (images + maps + halos + norms + gradients, halos)


@pytest.mark.parametrize("kind", ["shared_memory", "process_group", "hierarchical"])
def test_workers_that_move_at_the_same_time_have_the_bits_of_those_that_take_turns(tmp_path: Path, kind: str) -> None:
    """And each of them has the whole of the last two versions by itself."""
    run = Run(spec(5, 3, epochs=1), net(Plain))
    assert_same_bits_at_once(run, kind, tmp_path)


def test_a_run_that_is_resumed_has_the_bits_of_one_that_was_not(tmp_path: Path) -> None:
    """On as many workers, from within an epoch; on another number the same to float tolerance."""
    fields = {"model": "lenet5", "checkpoint": {"every_epochs": 0}}
    whole = read_checkpoint(LocalRun(spec(3, 2, **fields), tmp_path / "whole").train())
    half = LocalRun(spec(3, 2, **fields), tmp_path / "half", limit=3).train()
    for count in (2, 1):
        rest = spec(3, count, **fields | {"checkpoint": {"resume": str(half)}})
        found = read_checkpoint(LocalRun(rest, tmp_path / f"rest-{count}").train())
        for name, tensor in whole.model.items():
            if count == 2:
                assert torch.equal(found.model[name], tensor), name
            else:
                torch.testing.assert_close(found.model[name], tensor, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "lenet5", "workers": 3}, r"^workers: conv2 makes 4 rows of 4, and 3 workers.* halos of 2 rows; set "
         r"workers.count and workers.max to 2 or less, or give algorithm.until: conv2"),
        ({"model": "mlp"}, r"^model.name: spatial divides the rows of the convolutions.* has fl"),
        ({"model": "squeezenet1_1", "data": {"name": "digits", "limit": 50, "random_resized_crop": 64}},
         r"^algorithm.until: features.2 \(MaxPool2d\) needs whole examples, and the convolution features.3.squeeze "),
        ({"model": "lenet5", "algorithm": {"name": "spatial", "until": "fc9"}},
         r"^algorithm.until: the model calls no layer fc9; there are conv1, pool, conv2"),
        ({"model": "lenet5", "algorithm": {"name": "spatial", "until": "conv1"}}, r"^algorithm.until: no convolution"),
        ({"data": {"name": "digits", "limit": 50}, "model": "lenet5", "workers": {"count": 2, "virtual": 4}},
         r"^workers: conv2 makes 4 rows of 4, and 4 workers, as many as the run may come to have"),
    ],
)  # fmt: skip
def test_what_the_model_shows_to_be_wrong(fields: dict[str, object], message: str) -> None:
    with pytest.raises(SpecRejected, match=message):
        check(set_up(spec(2, 2, **fields), None))


def test_a_split_that_the_rows_allow_is_taken() -> None:
    workers = {"workers": {"count": 2, "virtual": 4, "max": 2}}
    check(set_up(spec(2, 2, model="lenet5", **workers), None))
    check(set_up(spec(2, 2, {"until": "conv2"}, model="lenet5", workers=4), None))


@pytest.mark.parametrize("name", ["alexnet_one_tower", "alexnet_two_columns"])
def test_of_alexnet_all_layers_below_the_fully_connected_ones_are_divided(name: str) -> None:
    images = (3, 224, 224)
    model = build_model(ModelSpec(name=name), 1000, images, 0).to("meta")
    rows = RowModel(model, images[1], None)
    assert [layer.name for layer in rows.layers.values()][-2:] == ["features.conv5", "features.pool5"]
    rows.check_workers(2)


@pytest.mark.parametrize(
    ("fields", "pointer", "message"),
    [
        ({"precision": "bfloat16"}, "/precision", "spatial exchanges rows in float32"),
        ({"wire": "bfloat16"}, "/wire", "leave wire out"),
        ({"compress": "sign"}, "/compress", "leave compress out"),
        ({"model": {"name": "lenet5", "compile": True}}, "/model", "calls groups of layers"),
        ({"elastic": {"mode": "scale_batch"}}, "/elastic", "fixed_batch"),
    ],
)
def test_what_the_spec_shows_to_be_wrong(fields: dict[str, object], pointer: str, message: str) -> None:
    with pytest.raises(ValueError, match="validation error") as caught:
        spec(2, 2, **fields)
    (error,) = field_errors(caught.value, TrainSpec)
    assert error.pointer == pointer
    assert message in error.message
