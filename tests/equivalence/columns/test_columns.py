"""`hybrid` with columns equals serial SGD on the network with grouped convolutions."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from tests.equivalence.harness import RECIPES, Run, run_all_reduce, run_through_shards, serial, step_batches
from tests.equivalence.hybrid_net import assert_same_bits_at_once, distance, spec
from trainers.algorithms.hybrid.column_layers import Meeting
from trainers.errors import SpecRejected
from trainers.models.config import ModelSpec
from trainers.models.networks.column_norm import ColumnNorm
from trainers.models.registry import build_model
from trainers.training.setup import check, set_up

MEETINGS = 8 * 4 * 4 + 8 * 4 * 4
"""Activities of one example that travel: below the third convolution, and below the fully connected layers."""


class Net(nn.Module):
    """AlexNet's five convolutions on 1 x 8 x 8: the first and the third see all maps below them, the others those of
    their own column. Dropout below and between the fully connected layers; one convolution without biases."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), ColumnNorm(8 // columns), nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding=1, groups=columns, bias=False), nn.ReLU(inplace=True),
            nn.Conv2d(8, 16, 3, padding=1), nn.Tanh(),
            nn.Conv2d(16, 8, 3, padding=1, groups=columns), nn.ReLU(),
            nn.Conv2d(8, 8, 1, groups=columns), nn.ReLU(),
            nn.Flatten(), nn.Dropout(0.2),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Linear(128, 33), nn.ReLU(), nn.Dropout(0.3), nn.Linear(33, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def run_of(
    columns: int, count: int, algorithm: dict[str, Any] | None = None, virtual: int | None = None, **fields: Any
) -> Run:
    def net(seed: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return Net(columns)

    options = {"columns": columns} | (algorithm or {})
    return Run(spec(virtual or columns, count, options, **{"epochs": 2} | fields), net)


@pytest.mark.parametrize(
    ("columns", "count", "algorithm", "fields"),
    [
        (2, 1, {}, {}),  # a worker with all columns
        (2, 2, {}, {}),
        (2, 2, {"scheme": "b"}, {"clip": {"norm": 0.5}}),
        (4, 2, {"scheme": "c", "split": "outputs"}, {"loss": "logistic"}),
        (4, 3, {"scheme": "bc"}, {}),  # one, one and two columns
        (4, 4, {}, {"loss": "logistic", "clip": {"norm": 0.5}}),
        (2, 2, {"scheme": "b"}, RECIPES["sqrt, TensorFlow's RMSProp, polynomial"]),
    ],
)
def test_columns_equal_the_serial_network(
    columns: int, count: int, algorithm: dict[str, Any], fields: dict[str, Any]
) -> None:
    run = run_of(columns, count, algorithm, **fields)
    assert distance(run_all_reduce(run).params, serial(run, step_batches(run), "mean")) < 1e-5


@pytest.mark.parametrize("way", ["gather", "reduce"])
def test_the_test_above_can_fail(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where columns do not see each other's maps, or a worker does not get the others' parts of its gradient."""
    run = run_of(2, 2)

    def own(meeting: Meeting, maps: Tensor) -> Tensor:
        zeros = [torch.zeros_like(maps), torch.zeros_like(maps)]
        zeros[meeting.collectives.rank] = maps
        return torch.cat(zeros, 1) if way == "gather" else maps.chunk(2, 1)[meeting.collectives.rank].contiguous()

    monkeypatch.setattr(Meeting, way, own)
    assert distance(run_all_reduce(run).params, serial(run, step_batches(run), "mean")) > 1e-2


@pytest.mark.parametrize("count", [1, 2, 4])
def test_outputs_gradients_and_an_update_are_those_of_the_serial_network(count: int) -> None:
    """One step of plain SGD at a rate of 1: what it subtracts is the gradient; the loss is one of the outputs."""
    fields = {"optimizer": {"name": "sgd", "lr": 1.0}, "data": {"name": "digits", "limit": 28}, "epochs": 1}
    run = run_of(4, count, **fields)
    found, start = run_all_reduce(run), run.start().buffers.params
    losses = list[float]()

    def written(model: nn.Module, batch: Any) -> tuple[Tensor, float]:
        loss = nn.functional.cross_entropy(model(batch.images), batch.labels, reduction="sum")
        losses.append(float(loss.detach()))
        return loss, len(batch)

    expected = serial(run, step_batches(run), "mean", written)
    torch.testing.assert_close(start - found.params, start - expected, rtol=1e-4, atol=1e-7)
    assert (start - expected).norm() > 0.1
    assert sum(report.total.loss for report in found.reports) == pytest.approx(sum(losses), rel=1e-5)


@pytest.mark.parametrize(("columns", "count"), [(2, 2), (4, 2), (4, 4)])
def test_only_images_and_activities_travel(columns: int, count: int) -> None:
    """In floats, of all K workers for a step's kn examples: everybody needs the images and labels of all others, and,
    where columns meet, the others' maps, of which each then sends a part of the gradient back. Logits are summed."""

    def floats(epochs: int) -> float:
        small = {"batch": 8, "data": {"name": "digits", "limit": 8 * columns}, "epochs": epochs}
        return run_all_reduce(run_of(columns, count, **small)).traffic.sent_bytes / 4

    others, kn = count - 1, 8 * columns
    images, labels = 64, 4  # and ids, 8 bytes each
    logits = 2 * 10  # of the last layer, which is divided by inputs: an all-reduce
    assert floats(2) - floats(1) == others * kn * (images + labels + 2 * MEETINGS + logits)


@pytest.mark.parametrize("algorithm", ["hybrid", "sync", "downpour", "mixed", "parallel_sgd", "diloco", "admm"])
def test_the_model_is_one_for_every_algorithm(algorithm: str) -> None:
    fields = {"data": {"name": "digits", "limit": 21}, "epochs": 1, "algorithm": algorithm, "optimizer": "sgd"}
    options = {"max_staleness": 0} if algorithm in ("downpour", "mixed") else {}
    fields["algorithm"] = {"name": algorithm} | options
    run = Run(spec(2, 2, **fields), two_columns)
    through = run.spec.algorithm.traits.uses_parameter_server
    found = (run_through_shards if through else run_all_reduce)(run).params
    assert found.isfinite().all()
    assert not torch.equal(found, run.start().buffers.params)


def two_columns(seed: int) -> nn.Module:
    return build_model(ModelSpec(name="convnet_two_columns"), 10, (1, 8, 8), seed)


def test_the_small_twin_of_alexnet_has_a_column_a_worker() -> None:
    fields = {"data": {"name": "digits", "limit": 56}, "epochs": 1}
    run = Run(spec(2, 2, {"columns": 2}, **fields), two_columns)
    assert distance(run_all_reduce(run).params, serial(run, step_batches(run), "mean")) < 1e-5


@pytest.mark.parametrize("connect", [{"blocks": 2}, {"blocks": 2, "rank": 3}])
def test_columns_go_with_restricted_and_projected_layers(connect: dict[str, int]) -> None:
    """Which the tests of those hold to serial SGD."""
    fields = {"data": {"name": "digits", "limit": 56}, "epochs": 1}
    columns, none = (
        Run(spec(2, 2, {"connect": connect} | more, **fields), two_columns) for more in ({"columns": 2}, {})
    )
    assert distance(run_all_reduce(columns).params, run_all_reduce(none).params) < 1e-5


def test_workers_see_the_columns_of_all_others_in_shared_memory(tmp_path: Path) -> None:
    """On the real transport; its bits are the local one's, and also a survivor's alone."""
    run = run_of(4, 3, {"scheme": "c"}, epochs=1)
    assert_same_bits_at_once(run, "shared_memory", tmp_path)


@pytest.mark.parametrize(
    ("columns", "model", "message"),
    [
        (2, "lenet5", r"^algorithm.columns: no convolution of this model has groups.*; take alexnet_two_columns"),
        (3, "convnet_two_columns", r"^algorithm.columns: 3 columns do not divide the groups .*\(2\).*; take 2$"),
        (4, "shufflenet_v2_x0_5", r"^algorithm.columns: .* convolutions alone, .* and conv1.1.weight is of another"),
    ],
)
def test_what_the_model_shows_to_be_wrong(columns: int, model: str, message: str) -> None:
    size = {"data": {"name": "digits", "random_resized_crop": 64}} if model.startswith("shuffle") else {}
    with pytest.raises(SpecRejected, match=message):
        check(set_up(spec(2, 2, {"columns": columns}, model=model, **size), None))


def test_frozen_columns_are_refused() -> None:
    frozen = {"name": "momentum", "groups": [{"match": "features.conv1.*", "frozen": True}]}
    with pytest.raises(SpecRejected, match=r"^optimizer.groups: hybrid divides features.conv1.bias among workers"):
        check(set_up(spec(2, 2, {"columns": 2}, model="convnet_two_columns", optimizer=frozen), None))


@pytest.mark.parametrize(
    ("algorithm", "virtual", "message"),
    [
        ({"columns": 2}, 3, r"3 virtual workers.* cannot share 2 columns; set workers.virtual to at most 2"),
        ({"columns": 2, "scheme": "b", "fc_batch": "per_turn"}, 2, r"use fc_batch: whole, or leave columns out"),
        ({"columns": 1}, 1, r"greater than or equal to 2"),
    ],
)
def test_what_the_spec_shows_to_be_wrong(algorithm: dict[str, Any], virtual: int, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        spec(virtual, 1, algorithm)


def test_a_norm_over_more_than_a_column_is_computed_of_all_maps() -> None:
    """And so is anything else that mixes channels: here also a mean over them."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.norm, self.b = nn.Conv2d(1, 8, 3), ColumnNorm(8), nn.Conv2d(8, 8, 3, groups=4)
            self.c, self.fc = nn.Conv2d(8, 8, 1, groups=2), nn.Linear(128, 10)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.b(self.norm(self.a(x))))
            return self.fc((self.c(x - x.mean(1, keepdim=True)) + x).flatten(1))

    def net(seed: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return Mixed()

    run = Run(spec(2, 2, {"columns": 2}, epochs=1), net)
    assert distance(run_all_reduce(run).params, serial(run, step_batches(run), "mean")) < 1e-5
