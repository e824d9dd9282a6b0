"""Networks of the claims' own: LeNet-5 on slow workers, and one of AlexNet's proportions that is small.

Both take grey images of any size.
"""

import random
import time
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

DRAWN = random.SystemRandom()
"""Every worker draws for itself."""


class Delayed(nn.Sequential):
    """Its worker waits before each minibatch, as if it had computed for so long; so gradients are as stale on two cores
    as they are on as many machines as there are workers."""

    def __init__(self, think_s: float, *layers: nn.Module) -> None:
        """think_s: Mean of the exponential distribution, as the theory has it (Mitliagkas et al. 2016, section 3)."""
        super().__init__(*layers)
        self.think_s = think_s

    def forward(self, images: Tensor) -> Tensor:
        """(B, 1, H, W) -> (B, classes)."""
        if self.training and self.think_s:
            time.sleep(DRAWN.expovariate(1 / self.think_s))
        logits: Tensor = super().forward(images)  # type: ignore[no-untyped-call]
        return logits


def lenet5(num_classes: int, think_s: float, **_: Any) -> Delayed:
    """61,706 parameters."""
    return Delayed(think_s, *_features(6, 16, 5), *_connected(400, 120, 84, num_classes))


def small_alexnet(num_classes: int, **_: Any) -> nn.Sequential:
    """402,794 parameters in ten classes, 99 % of them in the fully connected layers."""
    return nn.Sequential(*_features(8, 16, 4), *_connected(256, 512, 512, num_classes))


def _features(first: int, second: int, side: int) -> list[nn.Module]:
    """Two convolutions, of which `second` maps of `side` x `side` are left."""
    one, other = nn.Conv2d(1, first, 5, padding=2), nn.Conv2d(first, second, 5, padding=2)
    return [one, nn.ReLU(), nn.MaxPool2d(2), other, nn.ReLU(), nn.AdaptiveMaxPool2d(side), nn.Flatten()]


def _connected(*sizes: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return layers[:-1]
