"""Cutting models into chains of groups of layers."""

import pytest
import torch
from torch import Tensor, nn

from trainers.models.chain import cut_chain
from trainers.models.registry import build_model
from trainers.spec import ModelSpec


@pytest.mark.parametrize(
    ("name", "groups", "side"), [("lenet5", 5, 28), ("convnet", 2, 28), ("resnet18", 4, 32), ("alexnet", 3, 64)]
)
def test_the_groups_one_after_the_other_are_the_model(name: str, groups: int, side: int) -> None:
    channels = 1 if side == 28 else 3
    model = build_model(ModelSpec(name=name), 10, (channels, side, side), seed=0).eval()
    chain = cut_chain(model, groups)
    images = torch.randn(2, channels, side, side, generator=torch.Generator().manual_seed(1))
    x = images
    for group in chain:
        x = group(x)
    assert torch.equal(x, model(images))
    names = [name for group in chain for name in group.names]
    assert len(chain) == groups
    assert all(group.names for group in chain)
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())  # each in one group


def test_residual_blocks_stay_whole() -> None:
    model = build_model(ModelSpec(name="resnet18"), 10, (3, 32, 32), seed=0)
    for group in cut_chain(model, 9):
        blocks = {tuple(name.split(".")[:2]) for name in group.names if name.startswith("layer")}
        for block in blocks:
            mine = {name for name, _ in model.named_parameters() if tuple(name.split(".")[:2]) == block}
            assert mine <= set(group.names)


class Twice(nn.Module):
    """The first and the last layer are one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.a(torch.relu(self.b(torch.relu(self.a(x))))))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(x) if x.sum() > 0 else self.a(x)


def test_a_parameter_is_never_in_two_groups() -> None:
    first, second = cut_chain(Twice(), 2)
    assert set(first.names) == {"a.weight", "a.bias", "b.weight", "b.bias"}
    assert set(second.names) == {"c.weight", "c.bias"}
    with pytest.raises(ValueError, match="a chain of 2 groups of layers; use at most 2 groups, or leave it out"):
        cut_chain(Twice(), 3)


def test_what_is_no_chain_is_refused_with_what_would_work() -> None:
    with pytest.raises(ValueError, match=r"cannot trace the model .*; leave backprop out"):
        cut_chain(Branching(), 2)
    with pytest.raises(ValueError, match="1 groups of layers; it needs two at least; leave it out"):
        cut_chain(nn.Sequential(nn.Flatten(), nn.Linear(4, 4)), 2)
