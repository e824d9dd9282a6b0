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
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        raise IndexError("forgot the pooling")


def broken(num_classes: int, in_channels: int) -> nn.Module:
    return Broken()


class TooNarrow(nn.Module):
    """Its layers do not fit: what raises is torch's, or a product of ours, called from here."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(63, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        narrow = images.flatten(1)
        return self.last(narrow)


def too_narrow(num_classes: int, in_channels: int) -> nn.Module:
    return TooNarrow()


def lazy_and_broken(num_classes: int, in_channels: int) -> nn.Module:
    return nn.Sequential(Broken(), nn.LazyLinear(num_classes))


def embedding(in_channels: int) -> nn.Module:
    """Of images to 5 numbers, which are no logits."""
    return linear(5, in_channels)


class Words(nn.Module):
    """Of two inputs that are no images, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.grade = nn.Embedding(40, 4), nn.Linear(4, 3)

    def forward(self, words: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return self.grade(self.words(words).sum(1) / lengths[:, None])


def too_few_classes(num_classes: int, in_channels: int) -> nn.Module:
    return linear(num_classes - 1, in_channels)
