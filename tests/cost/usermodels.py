"""Models whose cost is known by hand."""

import torch
from torch import Tensor, nn


class Odd(nn.Module):
    """One convolution in groups used twice, a product of its own, a scale that no layer has, and a layer it reads."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(in_channels, 4, 3, padding=1)
        self.grouped = nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.scale = nn.Parameter(torch.ones(4))
        self.read = nn.Linear(4, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.norm(self.grouped(self.grouped(torch.relu(self.first(images)))))
        means = x.mean((2, 3)) * self.scale  # (B, 4)
        return means @ self.read.weight.T + self.read.bias


def odd(num_classes: int, in_channels: int) -> nn.Module:
    return Odd(num_classes, in_channels)


class Curious(nn.Module):
    """Asks for a value."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.last = nn.Linear(64, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.last(images.flatten(1))
        return logits * 2 if logits.sum().item() > 0 else logits


def curious(num_classes: int, in_channels: int) -> nn.Module:
    return Curious(num_classes)
