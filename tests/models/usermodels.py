"""Models as a user would write them, for the tests of `module:function`."""

import torch
from torch import nn


def linear(num_classes: int, in_channels: int, side: int = 8) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * side * side, num_classes))


def lazy(num_classes: int, in_channels: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes))


def raises(num_classes: int, in_channels: int) -> nn.Module:
    raise ZeroDivisionError("no classes for me")


def returns_a_number(num_classes: int, in_channels: int) -> int:
    return 3


class Broken(nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        raise IndexError("forgot the pooling")


def broken(num_classes: int, in_channels: int) -> nn.Module:
    return Broken()


def too_few_classes(num_classes: int, in_channels: int) -> nn.Module:
    return linear(num_classes - 1, in_channels)
