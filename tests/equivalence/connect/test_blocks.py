"""`hybrid` with restricted connectivity equals serial SGD on a model with masked layers."""

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from tests.equivalence.harness import RECIPES, Run, run_all_reduce, serial, step_batches
from tests.equivalence.hybrid_net import assert_same_bits_at_once, distance, spec, vectors
from tests.equivalence.test_hybrid_variable_batch import variable_batch
from trainers.errors import SpecRejected
from trainers.training.checkpoint import Checkpoint, Position, write_checkpoint
from trainers.training.setup import check, set_up

WIDTHS = (64, 24, 12, 16, 10)
RESTRICTED = ("head.3", "head.6")


class Masked(nn.Linear):
    """A unit of each of g blocks sees the units of that block alone."""

    def __init__(self, inputs: int, outputs: int, blocks: int) -> None:
        super().__init__(inputs, outputs)
        self.weight.data *= blocks**0.5  # as a layer with so few inputs begins
        self.register_buffer("mask", mask(outputs, inputs, blocks), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * self.mask, self.bias)


def mask(outputs: int, inputs: int, blocks: int) -> Tensor:
    return torch.block_diag(*[torch.ones(outputs // blocks, inputs // blocks)] * blocks)


class Net(nn.Module):
    """Batch norm in the backbone, dropout in the head; two layers between the first and the last."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
        )

        def between(inputs: int, outputs: int) -> nn.Linear:
            return Masked(inputs, outputs, blocks) if blocks else nn.Linear(inputs, outputs)

        a, b, c, d, e = WIDTHS
        self.head = nn.Sequential(
            nn.Linear(a, b), nn.ReLU(), nn.Dropout(0.3),
            between(b, c), nn.Tanh(), nn.Dropout(0.3),
            between(c, d), nn.ReLU(),
            nn.Linear(d, e),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))


def net(seed: int, blocks: int = 0) -> nn.Module:
    """blocks: of masked layers; 0: layers of torch, as `hybrid` is given them."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Net(blocks)


def restricted(
    blocks: int, count: int, algorithm: dict[str, object] | None = None, virtual: int = 5, **fields: object
) -> Run:
    """blocks: 0 for none."""
    connect = {"connect": {"blocks": blocks}} if blocks else {}
    return Run(spec(virtual, count, connect | (algorithm or {}), **{"epochs": 1} | fields), net)


def masked(run: Run, params: Tensor, blocks: int) -> Tensor:
    named = run.layout.named(params.clone())
    for name in RESTRICTED:
        weight = named[f"{name}.weight"]
        weight.mul_(mask(*weight.shape, blocks))
    return run.layout.flatten(named)


def written(run: Run, blocks: int) -> Tensor:
    """The parameters of the serial program, without those that its masks leave out."""
    twin = Run(run.spec, lambda seed: net(seed, blocks))
    scheme = getattr(run.spec.algorithm, "scheme", "a")
    if getattr(run.spec.algorithm, "fc_batch", "whole") == "per_turn":
        return masked(run, variable_batch(twin, step_batches(twin), scheme), blocks)
    return masked(run, serial(twin, step_batches(twin), "mean"), blocks)


@pytest.mark.parametrize(
    ("blocks", "count", "algorithm", "fields"),
    [
        (4, 1, {}, {}),  # a worker with all blocks
        (4, 2, {"scheme": "b"}, {"clip": {"norm": 0.5}}),
        (4, 3, {"scheme": "c", "split": "outputs"}, {}),  # one, one and two blocks
        (4, 4, {"scheme": "bc"}, {"loss": "logistic"}),
        (2, 5, {"scheme": "b", "split": "outputs"}, {"loss": "logistic"}),  # two and three workers share a block
        (2, 3, {"scheme": "c", "fc_batch": "per_turn"}, {}),
        (4, 2, {}, RECIPES["sqrt, TensorFlow's RMSProp, polynomial"] | {"epochs": 2}),
    ],
)
def test_blocks_equal_serial_sgd_with_masked_layers(
    blocks: int, count: int, algorithm: dict[str, object], fields: dict[str, object]
) -> None:
    run = restricted(blocks, count, algorithm, **fields)
    outcome = run_all_reduce(run)
    assert outcome.buffers is not None
    for vector in vectors(outcome.buffers):
        assert torch.equal(vector, masked(run, vector, blocks))  # of the weights left out nothing is ever trained
    assert distance(outcome.params, written(run, blocks)) < 1e-5


def test_the_test_above_can_fail() -> None:
    """Other blocks, and none."""
    found = run_all_reduce(restricted(4, 2)).params
    assert distance(found, written(restricted(2, 2), 2)) > 1e-2
    assert distance(found, run_all_reduce(restricted(0, 2)).params) > 1e-2


@pytest.mark.parametrize(("blocks", "count"), [(4, 4), (4, 2), (2, 4)])
def test_nothing_travels_between_the_layers_of_as_many_workers_as_blocks(blocks: int, count: int) -> None:
    """In floats, of all K workers for kn examples: of the h = 24 + 12 units that restricted layers see, none up to
    K = g, and 2 h (K - g)/g beyond. The sums of the logits travel in either case."""

    def floats(run: Run) -> float:
        steps = [run_all_reduce(Run(run.spec.model_copy(update={"epochs": n}), net)).traffic for n in (1, 2)]
        return (steps[1].sent_bytes - steps[0].sent_bytes) / 4

    fields = {"batch": 8, "data": {"name": "digits", "limit": 32}, "virtual": 4}
    kn, seen = 32, sum(WIDTHS[1:3])
    last = 2 * 10 * (count - 1) * kn  # an all-reduce of the logits

    without = 2 * 64 * (count - 1) * kn + 4 * (count - 1) * kn  # activities and their gradients, labels and ids
    backbone = 2 * (count - 1) * 128  # 48 parameters, padded
    within = 2 * seen * max(0, count - blocks) / blocks * kn
    assert floats(restricted(blocks, count, **fields)) == without + backbone + last + within


@pytest.mark.parametrize("connect", [{"blocks": 4}, {"blocks": 4, "rank": 2}])
def test_workers_see_the_blocks_of_all_others_in_shared_memory(tmp_path: Path, connect: dict[str, int]) -> None:
    """On the real transport; its bits are the local one's. Also with projections."""
    run = restricted(4, 3, {"scheme": "c", "connect": connect})
    assert_same_bits_at_once(run, "shared_memory", tmp_path)


def test_a_run_begins_without_the_weights_that_are_left_out(tmp_path: Path) -> None:
    """From the model as built, and from a checkpoint of any algorithm."""
    options = {"connect": {"blocks": 4}}
    fresh = set_up(spec(2, 2, options, model="lenet5"), None)
    (start, _), whole = fresh.begin(), fresh.replica.initial_params()

    def between(params: Tensor) -> Tensor:
        return fresh.layout.named(params)["fc2.weight"]

    of_blocks = mask(84, 120, 4)
    assert torch.equal(between(start.buffers.params), 2 * between(whole) * of_blocks)
    state = {name: fresh.layout.named(torch.ones_like(whole)) for name in start.buffers.state}
    position = Position(epoch=1, examples=203, learning_rate=0.05)
    written = Checkpoint(
        position, spec(2, 2, {"name": "sync"}).model_dump(mode="json"), fresh.layout.named(whole), state
    )
    write_checkpoint(tmp_path / "whole", written)
    resumed, _ = set_up(
        spec(2, 2, options, model="lenet5", checkpoint={"resume": str(tmp_path / "whole")}), None
    ).begin()
    for vector in vectors(resumed.buffers):
        assert not between(vector)[of_blocks == 0].any()
        assert between(vector)[of_blocks == 1].all()
    assert torch.equal(between(resumed.buffers.params), between(whole) * of_blocks)


@pytest.mark.parametrize(
    ("blocks", "model", "message"),
    [
        (5, "lenet5", r"^algorithm.connect.blocks: 5 blocks do not divide the 84 units of fc2; take 2, 3, 4, 6 or 12$"),
        (2, "mlp", r"^algorithm.connect: .* this model ends in 2; take a model that ends in three or more"),
    ],
)
def test_what_the_model_shows_to_be_wrong(blocks: int, model: str, message: str) -> None:
    with pytest.raises(SpecRejected, match=message):
        check(set_up(spec(2, 2, {"connect": {"blocks": blocks}}, model=model), None))


def test_one_block_is_no_restriction() -> None:
    with pytest.raises(ValidationError, match=r"connect.blocks\n.*greater than or equal to 2"):
        spec(2, 2, {"connect": {"blocks": 1}})
