"""Which layers of a model are its head, how they are divided, and what cannot be."""

import copy
import itertools

import pytest
import torch
import torchvision.models
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from trainers.algorithms.hybrid.config import HybridConfig
from trainers.algorithms.hybrid.slices import layer_slices, shapes
from trainers.errors import SpecRejected
from trainers.models.dropout import replace_dropout
from trainers.models.networks.krizhevsky import OneTowerAlexNet, TwoColumnAlexNet
from trainers.models.networks.small import ConvNet, LeNet5, Mlp
from trainers.models.split import FullyConnected, choose_ways, exchanged, split_model


def layers(*widths: int) -> list[FullyConnected]:
    """A head with these inputs and outputs."""
    return [FullyConnected(f"fc{i}", a, b, True) for i, (a, b) in enumerate(itertools.pairwise(widths))]


HEADS = {
    "convnet": (lambda: ConvNet(10, (1, 28, 28)), [("fc1", 1), ("fc2", 1), ("fc3", 0)]),
    "lenet5": (lambda: LeNet5(10, (1, 28, 28)), [("fc1", 1), ("fc2", 1), ("fc3", 0)]),
    "mlp": (lambda: Mlp(10, (1, 28, 28)), [("fc1", 1), ("fc2", 0)]),
    "one tower": (lambda: OneTowerAlexNet(1000, (3, 224, 224)), [("fc6", 2), ("fc7", 2), ("fc8", 0)]),
    "two columns": (lambda: TwoColumnAlexNet(1000, (3, 224, 224)), [("fc6", 2), ("fc7", 2), ("fc8", 0)]),
    "alexnet": (
        torchvision.models.alexnet,
        [("classifier.1", 2), ("classifier.4", 1), ("classifier.6", 0)],  # its dropout stands before the layers
    ),
    "vgg11_bn": (
        lambda: torchvision.models.vgg11_bn(init_weights=False),
        [("classifier.0", 2), ("classifier.3", 2), ("classifier.6", 0)],
    ),
    "resnet18": (torchvision.models.resnet18, [("fc", 0)]),
}


@pytest.mark.parametrize("name", HEADS)
def test_the_head_is_the_fully_connected_layers_that_end_the_model(name: str) -> None:
    """The layers of the head, and how many elementwise layers follow each."""
    build, expected = HEADS[name]
    with torch.device("meta"):
        model = build()
    replace_dropout(model, 0)
    split = split_model(model)
    assert [(layer.name, len(layer.after)) for layer in split.head] == expected
    in_backbone = {f"{name}." for name, _ in expected}
    assert not any(name.startswith(tuple(in_backbone)) for name, _ in split.backbone.named_parameters())
    first = model.get_submodule(expected[0][0])
    assert split.head[0].inputs == first.in_features


def composed(model: nn.Module, images: Tensor) -> Tensor:
    """The backbone, then all layers of the head."""
    split = split_model(model)
    x = split.backbone(images)
    for layer in split.head:
        linear = model.get_submodule(layer.name)
        x = F.linear(x, linear.weight, linear.bias)
        for elementwise in layer.after:
            x = elementwise(x, 0)
    return x


class Methods(nn.Module):
    """Activations as functions, methods and modules in place; one dropout used in backbone and head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.drop = nn.Conv2d(1, 3, 3), nn.Dropout(0.4)
        self.a, self.b, self.c, self.d = (
            nn.Linear(108, 20),
            nn.Linear(20, 15, bias=False),
            nn.Linear(15, 9),
            nn.ReLU(True),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.conv(x).sigmoid()).flatten(1)
        x = F.leaky_relu(self.a(x), 0.2, inplace=True)
        x = self.drop(self.d(self.b(x)))
        return torch.tanh(self.c(x).relu())


def test_backbone_and_head_compute_what_the_model_does() -> None:
    torch.manual_seed(0)
    model = Methods()
    draws, images = replace_dropout(model, 5), torch.randn(6, 1, 8, 8)
    ids = torch.arange(6).numpy()
    draws.set(0, ids)
    expected = model(images)
    draws.set(0, ids)
    split = split_model(model)
    assert [layer.name for layer in split.head] == ["a", "b", "c"]
    assert [layer.has_bias for layer in split.head] == [True, False, True]
    torch.testing.assert_close(composed(model, images), expected, rtol=0, atol=0)


def test_what_follows_a_layer_never_writes_over_its_input() -> None:
    model = Methods()
    replace_dropout(model, 5)
    for layer in split_model(model).head[:1]:
        x = torch.randn(6, 20)
        before = x.clone()
        for elementwise in layer.after:
            elementwise(x, 0)
        assert torch.equal(x, before)
    assert model.d.inplace  # and the model is left as it was


def test_a_shard_draws_its_own_units_part_of_the_mask() -> None:
    model = nn.Sequential(nn.Linear(4, 33), nn.Dropout(0.5), nn.Linear(33, 2))
    draws = replace_dropout(model, 1)
    draws.set(0, torch.arange(7).numpy())
    (drop,) = split_model(model).head[0].after
    ones = torch.ones(7, 33)
    whole = drop(ones, 0)
    assert 0 < int((whole == 0).sum()) < whole.numel()
    assert torch.equal(torch.cat([drop(ones[:, :16], 0), drop(ones[:, 16:], 16)], 1), whole)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) if float(x.sum()) > 0 else -self.fc(x)


class Tied(nn.Module):
    """The last layer's weight is an earlier one's too."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x)))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Flatten(), nn.Conv1d(1, 2, 1)), "does not end in any"),
        (nn.Sequential(nn.Linear(4, 2), nn.Softmax(1)), "does not end in any"),
        (Branches(), "depends on its values"),
        (Tied(), "used elsewhere"),
    ],
)
def test_what_cannot_be_divided_is_refused_with_the_field_and_what_would_work(model: nn.Module, message: str) -> None:
    with pytest.raises(SpecRejected, match=rf"^model.name: .*{message}.*; use .*algorithm sync"):
        HybridConfig().check_model(model, 2)


def test_more_workers_than_outputs_are_refused() -> None:
    model = LeNet5(10, (1, 28, 28))
    HybridConfig(split="outputs").check_model(model, 10)
    with pytest.raises(
        SpecRejected, match=r"^workers.count: 11 workers cannot share the 10 outputs of fc3; use at most 10"
    ):
        HybridConfig(split="outputs").check_model(model, 11)
    HybridConfig().check_model(model, 84)  # in pairs the last layer is divided by its 84 inputs
    with pytest.raises(SpecRejected, match=r"84 outputs of fc2; use at most 84"):
        HybridConfig().check_model(model, 85)


def test_pairs_are_chosen_where_they_exchange_least() -> None:
    assert choose_ways(layers(9216, 4096, 4096, 1000), paired=False) == ("outputs",) * 3
    assert choose_ways(layers(9216, 4096, 4096, 1000), paired=True) == ("outputs", "outputs", "inputs")
    assert choose_ways(layers(9216, 4096, 4096, 10**5), paired=True) == ("outputs", "inputs", "outputs")
    assert choose_ways(layers(512, 10), paired=True) == ("outputs",)
    assert choose_ways(layers(64, 33, 10), paired=True) == ("outputs", "inputs")
    assert choose_ways(layers(8, 8, 8, 8, 8), paired=True)[-1] == "inputs"


def test_how_many_activities_are_exchanged() -> None:
    head = layers(9216, 4096, 2048, 1000)
    assert exchanged(head, ("outputs", "outputs", "outputs")) == 2 * (4096 + 2048)
    assert exchanged(head, ("outputs", "outputs", "inputs")) == 2 * 4096 + 2 * 1000
    assert exchanged(head, ("outputs", "inputs", "outputs")) == 4 * 2048
    assert exchanged(head, ("outputs", "outputs", "inputs"), restricted=True) == 2 * 1000


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("blocks", [1, 2, 3, 6])
def test_the_shares_of_all_workers_are_the_layers(size: int, blocks: int) -> None:
    """Of a restricted layer, the blocks on its diagonal."""
    head = layers(40, 30, 18, 11) if blocks > 1 else layers(40, 33, 17, 11)
    ways = choose_ways(head, paired=True, restricted=blocks > 1)
    all_slices = [layer_slices(head, ways, rank, size, blocks) for rank in range(size)]
    for i, layer in enumerate(head):
        weight, bias = torch.zeros(layer.outputs, layer.inputs), torch.zeros(layer.outputs)
        for own in all_slices:
            shape = shapes(own)
            for name, whole in zip(layer.parameters, (weight, bias), strict=True):
                part = own[i].taken(name, whole)
                assert part.shape == shape[name]
                own[i].put(name, part + 1, whole)
        whole = [torch.ones(layer.outputs // blocks, layer.inputs // blocks)] * blocks
        assert torch.equal(weight, torch.block_diag(*whole) if i == 1 else torch.ones_like(weight))
        assert bool((bias == 1).all())


def test_the_split_leaves_the_model_as_it_was() -> None:
    model = LeNet5(10, (1, 28, 28))
    twin, images = copy.deepcopy(model), torch.randn(2, 1, 28, 28)
    split_model(model)
    assert torch.equal(model(images), twin(images))
