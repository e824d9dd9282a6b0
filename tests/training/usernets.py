"""Models with buffers as users have them."""

import torch
from torch import Tensor, nn


class Remembers(nn.Module):
    """A counter and a flag that are replaced, a moving average that shifts what comes out, a table that never changes
    and stands in two places, and batch norm."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.norm, self.last = nn.BatchNorm2d(1, momentum=None), nn.Linear(64, classes)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int32))
        self.register_buffer("odd", torch.zeros(3, dtype=torch.bool))
        self.register_buffer("average", torch.zeros(64))
        self.register_buffer("coarse", torch.zeros(3, dtype=torch.bfloat16))
        self.register_buffer("table", torch.rand(5, dtype=torch.float64), persistent=False)
        self.twin = nn.Module()
        self.twin.register_buffer("table", self.table, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        x = self.norm(images).flatten(1)
        shifted = (x - self.average) * self.average.add(1)
        if self.training:
            self.seen = self.seen + len(images)
            self.odd = ~self.odd
            self.coarse += 1
            self.average = 0.9 * self.average + 0.1 * x.mean(0)
        return self.last(shifted) * self.twin.table.sum().float()


def remembers(num_classes: int, in_channels: int) -> nn.Module:
    return Remembers(num_classes)


class Grows(nn.Module):
    """Its buffer changes its shape."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.last = nn.Linear(64, classes)
        self.register_buffer("history", torch.zeros(0))

    def forward(self, images: Tensor) -> Tensor:
        self.history = torch.cat([self.history, images.mean().detach()[None]])
        return self.last(images.flatten(1))


def grows(num_classes: int, in_channels: int) -> nn.Module:
    return Grows(num_classes)
