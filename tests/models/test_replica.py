"""The callbacks of a replica during the backward pass."""

import numpy as np
import torch
from torch import Tensor, nn

from trainers.data.batches import Batch
from trainers.models.dropout import replace_dropout
from trainers.models.layout import lay_out
from trainers.models.replica import Replica


class Net(nn.Module):
    """A layer that is used twice, one that is used never, and others."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3)
        self.twice, self.never, self.last = nn.Linear(48, 48), nn.Linear(5, 5), nn.Linear(48, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x))).flatten(1)
        return self.last(torch.relu(self.twice(torch.relu(self.twice(x)))))


def test_each_parameter_is_told_once_when_its_gradient_is_complete_the_last_layers_first() -> None:
    torch.manual_seed(0)
    model = Net()
    replica = Replica(model, lay_out(model), torch.device("cpu"), replace_dropout(model, 0))
    batch = Batch((torch.randn(6, 1, 4, 4), torch.arange(6) % 4), 0, np.arange(6))
    params = replica.initial_params()
    expected, into = torch.zeros_like(params), torch.full_like(params, float("nan"))
    replica.gradient(params, batch, expected)
    calls: list[str] = []

    def complete(name: str) -> None:
        calls.append(name)
        assert torch.equal(replica.layout.named(into)[name], replica.layout.named(expected)[name])

    replica.gradient(params, batch, into, on_ready=complete)
    assert sorted(calls) == sorted(replica.layout.names)
    layers = list(dict.fromkeys(name.partition(".")[0] for name in calls))
    assert layers == ["last", "twice", "norm", "conv", "never"]
    replica.gradient(params, batch, into)
    assert len(calls) == len(replica.layout.names)


class Attends(nn.Module):
    """Attention takes its projection's weight without calling the projection."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.attention, self.last = nn.Linear(4, 8), nn.MultiheadAttention(8, 2), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.flatten(1)).unsqueeze(0)
        return self.last(self.attention(x, x, x)[0][0])


def test_each_parameter_is_named_before_the_forward_pass_uses_it() -> None:
    torch.manual_seed(0)
    model = Attends()
    replica = Replica(model, lay_out(model), torch.device("cpu"), replace_dropout(model, 0))
    events: list[str] = []
    replica.on_use = events.append
    children = {name: module for name, module in model.named_children() if name != "attention"}
    for name, module in children.items():
        module.register_forward_hook(lambda *_, name=name: events.append(f"after {name}"))
    batch = Batch((torch.randn(6, 1, 2, 2), torch.arange(6) % 4), 0, np.arange(6))
    params = replica.initial_params()
    replica.gradient(params, batch, torch.zeros_like(params))
    order = list(dict.fromkeys(events))
    assert set(order) == {*replica.layout.names, "after first", "after last"}
    assert order.index("first.weight") < order.index("after first") < order.index("attention.out_proj.weight")
    assert order.index("attention.out_proj.weight") < order.index("last.weight") < order.index("after last")


def test_a_minibatch_without_examples_says_its_weight_before_it_writes() -> None:
    """Whoever sends what lies there may still have to wait until it has left."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    replica = Replica(model, lay_out(model), torch.device("cpu"), replace_dropout(model, 0))
    params, into, seen = replica.initial_params(), torch.ones(replica.layout.numel), list[Tensor]()
    empty = Batch((torch.empty(0, 1, 2, 2), torch.empty(0, dtype=torch.int64)), 0, np.arange(0))
    replica.gradient(params, empty, into, on_weight=lambda weight: seen.append(into.clone()))
    assert [before.min() for before in seen] == [1.0]
    assert not into.any()
