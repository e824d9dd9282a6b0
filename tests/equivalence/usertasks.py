"""Tasks as a user writes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from trainers import Loss, Supervised, Task

KEPT = 3
WEIGHTS = [0.001 * (i + 1) for i in range(10)]
"""Of the classes of digits."""


class Masked(Supervised, Task):
    """Only some of a window's tokens count: how many differs from one minibatch to the next."""

    def loss_of(self, outputs: Tensor, data: Any) -> Loss:
        _, targets = data
        counts = targets % KEPT == 0
        return Loss(F.cross_entropy(outputs[counts], targets[counts], reduction="sum"), int(counts.sum()))


class Pairs(Task):
    """A contrastive loss over a whole minibatch (Chen et al. 2020): an image and its mirror image belong together. It
    calls the model itself, twice, and brings a model of its own."""

    def __init__(self, temperature: float = 0.5) -> None:
        self.temperature = temperature

    def model(self, facts: Any) -> nn.Module:
        channels, height, width = facts.inputs
        return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 24), nn.ReLU(), nn.Linear(24, 8))

    def loss(self, model: Any, data: Any) -> Loss:
        images, _ = data
        views = torch.cat([F.normalize(model(images)), F.normalize(model(images.flip(-1)))])
        alike = (views @ views.T / self.temperature).fill_diagonal_(-1e9)
        partners = torch.arange(len(views), device=views.device).roll(len(images))
        return Loss(F.cross_entropy(alike, partners, reduction="sum") / 2, len(images))
