"""A user's own models, as a spec names them: `nets:small_net`."""

import torch
from torch import Tensor, nn


class SmallNet(nn.Module):
    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(in_channels, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.drop, self.fc = nn.Dropout(0.3), nn.Linear(4 * 64, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.drop(torch.relu(self.norm(self.conv(x))).flatten(1)))


def small_net(num_classes: int, in_channels: int) -> nn.Module:
    return SmallNet(num_classes, in_channels)


def raises(num_classes: int, in_channels: int) -> nn.Module:
    raise RuntimeError("the moon is in the wrong phase")


class Diverging(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(64, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return (self.fc(x.flatten(1)) * 1e30) ** 2


def diverging(num_classes: int, in_channels: int) -> nn.Module:
    print("a model that diverges")
    return Diverging(num_classes)
