"""Models that do not give the same bits wherever they are computed, each for another reason."""

import numpy as np
import torch
from torch import Tensor, nn

CALLS = [0]


class Careless(nn.Module):
    """How: `counts` in an attribute, `shares` a global variable, `draws` from a generator of its own, `unseeded` from
    one that nobody seeded, or `well`, from torch's."""

    def __init__(self, classes: int, how: str) -> None:
        super().__init__()
        self.how, self.calls = how, 0
        self.first, self.last = nn.Linear(64, 6), nn.Linear(6, classes)
        self.generator = np.random.default_rng(None if how == "unseeded" else 0)

    def forward(self, images: Tensor) -> Tensor:
        x = self.first(images.flatten(1))
        if self.training:
            x = x * self.factor()
        return self.last(torch.relu(x))

    def factor(self) -> float:
        if self.how == "counts":
            self.calls += 1
            return 1 / self.calls
        if self.how == "shares":
            CALLS[0] += 1
            return 1 / CALLS[0]
        if self.how in ("draws", "unseeded"):
            return float(self.generator.random())
        return float(torch.rand(()))


def careless(num_classes: int, in_channels: int, how: str) -> nn.Module:
    return Careless(num_classes, how)
