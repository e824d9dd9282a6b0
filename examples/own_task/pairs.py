"""A task of one's own: a contrastive loss over the minibatch of a virtual worker (Chen et al. 2020, SimCLR)."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from trainers import Loss, Mean, Measure, Task


class Pairs(Task):
    """An image and a noisy copy of it belong together, all other images of the minibatch do not."""

    headline = "found"
    higher_is_better = True

    def __init__(self, temperature: float = 0.2, noise: float = 0.3) -> None:
        self.temperature, self.noise = temperature, noise

    def model(self, facts) -> nn.Module:
        """`facts` says what the data looks like: here (channels, height, width) of an image."""
        channels, height, width = facts.inputs
        return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 64), nn.ReLU(), nn.Linear(64, 16))

    def loss(self, model, data) -> Loss:
        """Summed over the images, with how many they are."""
        images, _ = data
        alike = self._alike(model, images)
        return Loss(F.cross_entropy(alike, torch.arange(len(images)), reduction="sum"), len(images))

    def metrics(self, model, data) -> Mapping[str, Measure]:
        """`found`: for how many images the own copy is the nearest."""
        images, _ = data
        loss, right = self.loss(model, data), self._alike(model, images).argmax(1) == torch.arange(len(images))
        return {"loss": Mean(float(loss.total), loss.weight), "found": Mean(float(right.sum()), len(images))}

    def _alike(self, model: nn.Module, images: Tensor) -> Tensor:
        """(B, B): how near image i is to the copy of image j. Torch's generator is seeded anew for each minibatch."""
        copies = images + self.noise * torch.randn_like(images)
        return F.normalize(model(images)) @ F.normalize(model(copies)).T / self.temperature
