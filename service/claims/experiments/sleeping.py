"""A model and an optimizer that sleep instead of computing, on vectors that are real."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


class Sleeper(nn.Module):
    """A minibatch takes `think_s`, whatever the processor does meanwhile, and gives a gradient of `numel` numbers."""

    def __init__(self, think_s: float, numel: int, shards: int) -> None:
        """shards: So many parameters, each of which a shard of its own has."""
        super().__init__()
        self.think_s = think_s
        self.parts = nn.ParameterList(nn.Parameter(torch.zeros(numel // shards)) for _ in range(shards))

    def forward(self, x: Tensor) -> Tensor:
        """(n, 1) -> (n, 2)."""
        if self.training:
            time.sleep(self.think_s)
        return x * torch.stack([part[:2] for part in self.parts]).sum(0)


def sleeper(think_s: float, numel: int, shards: int, **_: Any) -> Sleeper:
    """As a spec names it."""
    return Sleeper(think_s, numel, shards)


class SlowSGD(torch.optim.Optimizer):
    """Plain SGD whose every update takes `serve_s` longer: so long a shard is busy with one push."""

    def __init__(self, params: Iterable[Tensor], lr: float, serve_s: float) -> None:
        super().__init__(params, {"lr": lr})
        self.serve_s = serve_s

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None, "there is no loss to compute again"
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.add_(parameter.grad, alpha=-group["lr"])
        time.sleep(self.serve_s)


def numbers(root: str, count: int = 4096) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Examples of one number, of two classes; training and test."""
    x = torch.linspace(-1, 1, count).view(-1, 1)
    y = (x.flatten() > 0).long()
    return (x, y), (x[:8], y[:8])
