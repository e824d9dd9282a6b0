"""`hybrid` with projected connectivity equals serial SGD on a model whose matrices are products, and at full rank with
the identity the whole layers."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from tests.equivalence.harness import RECIPES, Run, run_all_reduce, serial, step_batches
from tests.equivalence.hybrid_net import distance, spec
from tests.equivalence.test_hybrid_variable_batch import variable_batch
from trainers.errors import SpecRejected
from trainers.models.networks.projected import Projected
from trainers.training.checkpoint import Checkpoint, Position, write_checkpoint
from trainers.training.setup import Setup, check, set_up

WIDTHS = (64, 24, 24, 16, 10)
EVERY = settings(derandomize=True, deadline=None, database=None, max_examples=50)
HELD = {"match": "*.projection.weight", "lr": 1e-30, "weight_decay": 0.0}
"""A group whose parameters stay what they are: such an update is lost beside any other number."""


class Factored(nn.Module):
    """The whole matrix, written out: W_b on the diagonal, U_bk P_k in the other blocks."""

    def __init__(self, inputs: int, outputs: int, blocks: int, rank: int) -> None:
        super().__init__()
        whole, wide = nn.Linear(inputs, outputs), inputs // blocks
        self.blocks, self.rank = blocks, rank
        kept = torch.zeros(outputs, blocks, wide, dtype=torch.bool)
        kept[:, :, :rank] = True
        for row in range(outputs):
            kept[row, row // (outputs // blocks)] = True
        seen = wide + (blocks - 1) * rank
        initial = whole.weight.detach()[kept.view(outputs, inputs)].view(outputs, seen)
        self.weight = nn.Parameter(initial * (inputs / seen) ** 0.5)  # as a layer with so few inputs begins
        self.bias = whole.bias
        self.projection = nn.Module()
        self.projection.weight = nn.Parameter(torch.cat([torch.eye(wide)[:rank]] * blocks))

    def matrix(self) -> Tensor:
        ways, rows = self.projection.weight.split(self.rank), []
        for b, row in enumerate(self.weight.chunk(self.blocks)):
            wide = ways[0].shape[1]
            parts = row.split([wide if k == b else self.rank for k in range(self.blocks)], 1)
            rows.append(torch.cat([part if k == b else part @ ways[k] for k, part in enumerate(parts)], 1))
        return torch.cat(rows)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.matrix(), self.bias)


class Net(nn.Module):
    """Batch norm in the backbone, dropout in the head; two layers between the first and the last."""

    def __init__(self, blocks: int, rank: int) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
        )

        def between(inputs: int, outputs: int) -> nn.Module:
            return Factored(inputs, outputs, blocks, rank) if rank else nn.Linear(inputs, outputs)

        a, b, c, d, e = WIDTHS
        self.head = nn.Sequential(
            nn.Linear(a, b), nn.ReLU(), nn.Dropout(0.3),
            between(b, c), nn.Tanh(), nn.Dropout(0.3),
            between(c, d), nn.ReLU(),
            nn.Linear(d, e),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))


def net(seed: int, blocks: int = 0, rank: int = 0) -> nn.Module:
    """rank: of matrices that are products; 0: layers of torch, as `hybrid` is given them."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Net(blocks, rank)


def projected(
    blocks: int, rank: int, count: int, algorithm: dict[str, object] | None = None, virtual: int = 5, **fields: object
) -> Run:
    """rank: 0 for layers that nothing restricts."""
    connect = {"connect": {"blocks": blocks, "rank": rank}} if rank else {}
    return Run(spec(virtual, count, connect | (algorithm or {}), **{"epochs": 1} | fields), net)


def written(run: Run, blocks: int, rank: int) -> Tensor:
    """The parameters of the serial program."""
    config = run.spec.algorithm.model_copy(update={"connect": None})
    twin = Run(run.spec.model_copy(update={"algorithm": config}), lambda seed: net(seed, blocks, rank))
    assert twin.layout.shapes == run.layout.shapes
    if config.fc_batch == "per_turn":
        return variable_batch(twin, step_batches(twin), config.scheme)
    return serial(twin, step_batches(twin), "mean")


@pytest.mark.parametrize(
    ("blocks", "rank", "count", "algorithm", "fields"),
    [
        (4, 2, 1, {}, {}),  # a worker with all blocks
        (4, 2, 2, {"scheme": "b"}, {"clip": {"norm": 0.5}}),
        (4, 6, 3, {"scheme": "c", "split": "outputs"}, {}),  # one, one and two blocks, at full rank
        (4, 1, 4, {"scheme": "bc"}, {"loss": "logistic"}),
        (2, 5, 5, {"scheme": "b", "split": "outputs"}, {}),  # two and three workers share a block and its projection
        (2, 1, 5, {}, {}),  # some have no row of it
        (2, 3, 3, {"scheme": "c", "fc_batch": "per_turn"}, {}),
        (4, 2, 2, {}, RECIPES["sqrt, TensorFlow's RMSProp, polynomial"] | {"epochs": 2}),
    ],
)
def test_projections_equal_serial_sgd_with_products(
    blocks: int, rank: int, count: int, algorithm: dict[str, object], fields: dict[str, object]
) -> None:
    run = projected(blocks, rank, count, algorithm, **fields)
    found, expected = run_all_reduce(run).params, written(run, blocks, rank)
    assert distance(found, expected) < 1e-5
    for name, value in run.layout.named(found).items():
        if "projection" in name:
            assert distance(value, run.layout.named(run.start().buffers.params)[name]) > 1e-3  # it has learned
            assert distance(value, run.layout.named(expected)[name]) < 1e-5


def test_the_test_above_can_fail() -> None:
    """Other ranks, and other blocks, in the first layer that differs."""
    run = projected(4, 2, 2)
    named = run.layout.named(run_all_reduce(run).params)
    for blocks, rank in ((4, 1), (4, 3), (2, 2)):
        other = projected(blocks, rank, 2)
        theirs = other.layout.named(written(other, blocks, rank))
        assert distance(named["head.0.weight"], theirs["head.0.weight"]) > 1e-3


@pytest.mark.parametrize(("blocks", "count"), [(2, 1), (2, 2), (2, 3), (4, 3)])
def test_at_full_rank_with_the_identity_it_is_the_whole_model(blocks: int, count: int) -> None:
    """All of an epoch, where the projections are held: the same weights, column by column, as serial SGD's."""
    rank = 24 // blocks
    held = projected(blocks, rank, count, optimizer={"name": "momentum", "lr": 0.05, "groups": [HELD]})
    named = held.layout.named(run_all_reduce(held).params)
    whole = projected(blocks, 0, count, optimizer={"name": "momentum", "lr": 0.05})
    expected = whole.layout.named(serial(whole, step_batches(whole), "mean"))
    for name, value in expected.items():
        assert distance(named[name], value) < 1e-5, name
    identity = torch.eye(rank).repeat(blocks, 1)
    assert all((value - identity).abs().max() < 1e-20 for name, value in named.items() if "projection" in name)
    learned = run_all_reduce(projected(blocks, rank, count, optimizer={"name": "momentum", "lr": 0.05})).params
    assert distance(learned, held.layout.flatten(named)) > 1e-3  # held, they are another model than learned


@EVERY
@given(
    blocks=st.integers(1, 5), wide=st.integers(1, 6), tall=st.integers(1, 4), rows=st.integers(1, 5),
    bias=st.booleans(), seed=st.integers(0, 2**20), data=st.data(),
)  # fmt: skip
def test_a_projected_layer(
    blocks: int, wide: int, tall: int, rows: int, bias: bool, seed: int, data: st.DataObject
) -> None:
    """At full rank its outputs, gradients and an update are the whole layer's; below, it is the whole layer with the
    product of its factors."""
    draw = torch.Generator().manual_seed(seed)
    whole = nn.Linear(blocks * wide, blocks * tall, bias=bias).double()
    whole.weight.data = torch.randn(whole.weight.shape, generator=draw, dtype=torch.float64)
    x, dz = (torch.randn(rows, width, generator=draw, dtype=torch.float64) for width in (blocks * wide, blocks * tall))

    def passed(layer: nn.Module) -> list[Tensor]:
        """Outputs, and the gradients of the inputs and the layer's weight and bias."""
        inputs = x.clone().requires_grad_()
        z = layer(inputs)
        trained = [p for p in (layer.weight, layer.bias) if p is not None]
        return [z.detach(), *torch.autograd.grad(z, [inputs, *trained], dz)]

    full = Projected(whole, blocks, wide, as_built=True).double()
    assert torch.equal(full.weight, whole.weight)
    for found, expected in zip(passed(full), passed(whole), strict=True):
        torch.testing.assert_close(found, expected)

    rank = data.draw(st.integers(1, wide), "rank")
    low = Projected(whole, blocks, rank, as_built=False).double()
    low.projection.weight.data = torch.randn(low.projection.weight.shape, generator=draw, dtype=torch.float64)
    ways, product = low.projection.weight.chunk(blocks), []
    for b, row in enumerate(low.weight.chunk(blocks)):
        parts = row.split([wide if k == b else rank for k in range(blocks)], 1)
        product.append(torch.cat([part if k == b else part @ ways[k] for k, part in enumerate(parts)], 1))
    torch.testing.assert_close(low(x), F.linear(x, torch.cat(product), whole.bias))


@pytest.mark.parametrize(("blocks", "rank", "count"), [(4, 2, 4), (4, 3, 2), (2, 5, 4), (4, 6, 4)])
def test_of_a_block_as_many_numbers_travel_as_its_projection_has(blocks: int, rank: int, count: int) -> None:
    """In floats, of all K workers for kn examples: of each of two layers 2 g r (K - 1), where the whole layers' units
    are 2 h (K - 1); and of blocks that workers share 2 h (K - g)/g."""

    def floats(rank: int) -> float:
        fields = {"batch": 8, "data": {"name": "digits", "limit": 32}, "virtual": 4}
        runs = [projected(blocks, rank, count, {"split": "outputs"}, epochs=n, **fields) for n in (1, 2)]
        once, twice = (run_all_reduce(run).traffic.sent_bytes for run in runs)
        return (twice - once) / 4

    kn, seen = 32, 24 + 24
    whole = 2 * seen * (count - 1) * kn
    within = 2 * seen * max(0, count - blocks) / blocks * kn
    travels = floats(rank) - within - (floats(0) - whole)
    assert travels == 2 * (2 * blocks * rank) * (count - 1) * kn
    assert travels / whole == rank / (24 / blocks)


def of_lenet5(connect: dict[str, int] | None, **fields: object) -> Setup:
    return set_up(spec(2, 2, {"connect": connect}, model="lenet5", **fields), None)


def test_a_run_begins_with_what_the_whole_layer_has_a_place_for() -> None:
    setup = of_lenet5({"blocks": 4, "rank": 6})
    found = setup.layout.named(setup.begin()[0].buffers.params)
    whole = of_lenet5(None).replica.initial_params()
    weight = of_lenet5(None).layout.named(whole)["fc2.weight"].view(84, 4, 30)
    scale = (120 / (30 + 3 * 6)) ** 0.5
    assert found["fc2.weight"].shape == (84, 48)
    assert torch.equal(found["fc2.weight"][21:42, 6:36], scale * weight[21:42, 1])  # its own block whole
    assert torch.equal(found["fc2.weight"][21:42, 36:42], scale * weight[21:42, 2, :6])
    assert torch.equal(found["fc2.projection.weight"][6:12], torch.eye(6, 30))
    setup.replica.point_to_vector(torch.zeros_like(setup.begin()[0].buffers.params))  # it trains; and begins anew
    again = setup.layout.named(setup.begin()[0].buffers.params)
    assert all(torch.equal(again[name], value) for name, value in found.items())


def test_a_checkpoint_is_of_its_blocks_and_rank(tmp_path: Path) -> None:
    """Any number of workers goes on from it, and no other model."""
    connect = {"blocks": 4, "rank": 6}
    setup = of_lenet5(connect)
    start, _ = setup.begin()
    model, state = setup.layout.named(start.buffers.params + 1), start.buffers.state
    position = Position(epoch=1, examples=203, learning_rate=0.05)
    optimizer = {name: setup.layout.named(vector) for name, vector in state.items()}
    write_checkpoint(tmp_path / "c", Checkpoint(position, setup.spec.model_dump(mode="json"), model, optimizer))
    resume = {"checkpoint": {"resume": str(tmp_path / "c")}}
    for count in (1, 3):
        other = spec(3, count, {"connect": connect}, model="lenet5", **resume)
        assert torch.equal(set_up(other, None).begin()[0].buffers.params, setup.layout.flatten(model))
    for another in ({"blocks": 4, "rank": 5}, {"blocks": 2, "rank": 6}, {"blocks": 4}, None):
        with pytest.raises(SpecRejected, match=r"^checkpoint.resume: its fc2.*; it is another model's"):
            of_lenet5(another, **resume).begin()


@pytest.mark.parametrize(
    ("connect", "message"),
    [
        ({"blocks": 4, "rank": 31}, r"^algorithm.connect.rank: .* the 30 units of a block of fc1; take 30 or less$"),
        ({"blocks": 5, "rank": 2}, r"^algorithm.connect.blocks: 5 blocks do not divide the 84 units of fc2; take 2"),
    ],
)
def test_what_the_model_shows_to_be_wrong(connect: dict[str, int], message: str) -> None:
    with pytest.raises(SpecRejected, match=message):
        check(of_lenet5(connect))


@pytest.mark.parametrize("count", [1, 3, 4])
def test_a_rank_alone_has_a_block_a_virtual_worker(count: int) -> None:
    """On any number of workers: these blocks stand in the spec, and it equals serial SGD on the model that has them."""
    alone = spec(4, count, {"connect": {"rank": 2}}, epochs=1)
    assert alone == spec(4, count, {"connect": {"blocks": 4, "rank": 2}}, epochs=1)
    assert alone.with_workers(2).algorithm == alone.algorithm
    run = Run(alone, net)
    assert distance(run_all_reduce(run).params, written(run, 4, 2)) < 1e-5


def test_where_a_rank_alone_has_no_such_blocks_they_are_to_be_given() -> None:
    with pytest.raises(ValidationError, match=r"there is one virtual worker; set workers.virtual .*, or give blocks"):
        spec(1, 1, {"connect": {"rank": 4}})
    with pytest.raises(ValidationError, match=r"give blocks, of which .*, or the rank"):
        spec(2, 2, {"connect": {}})
    with pytest.raises(SpecRejected, match=r"^algorithm.connect.blocks: 5 blocks do not divide the 84 .*; take 2, 3"):
        check(set_up(spec(5, 2, {"connect": {"rank": 4}}, model="lenet5"), None))
