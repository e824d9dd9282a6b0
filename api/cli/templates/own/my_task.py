"""What is learned: a number, and how sure of it the model is."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trainers import Loss, Mean, Measure, Task


class MyTask(Task):
    """Noisy numbers, each as a normal distribution whose mean and spread the model gives (Nix and Weigend 1994)."""

    headline = "error"  # the metric by which runs are compared
    higher_is_better = False

    def __init__(self, floor: float = 0.01) -> None:
        """floor: The least spread. `task.kwargs` of the spec arrive here."""
        self.floor = floor

    def model(self, facts: Any) -> nn.Module:
        """The model where the spec names none. `facts.inputs` is the shape of one input, here (1,).

        Its weights may be drawn from torch's generator, which is seeded from the spec.
        """
        (features,) = facts.inputs
        return nn.Sequential(nn.Linear(features, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2))

    def loss(self, model: nn.Module, data: tuple[Tensor, Tensor]) -> Loss:
        """The sum over the minibatch, never its mean, and how many examples that was: an update divides once, by the
        examples of all workers together."""
        x, y = data
        mean, spread = self._predicted(model, x)
        total = ((y - mean) ** 2 / (2 * spread**2) + spread.log()).sum()
        return Loss(total, len(y))

    def metrics(self, model: nn.Module, data: tuple[Tensor, Tensor]) -> Mapping[str, Measure]:
        """What is measured on a minibatch of the test set. They are added up, so each is a sum with a weight."""
        x, y = data
        mean, spread = self._predicted(model, x)
        away = (y - mean).abs()
        loss = self.loss(model, data)
        return {
            "loss": Mean(float(loss.total), loss.weight),
            "error": Mean(float(away.sum()), len(y)),
            "within_spread": Mean(float((away < spread).sum()), len(y)),  # 0.68 where the spread is right
        }

    def _predicted(self, model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 1) each."""
        mean, raw = model(x).split(1, dim=1)
        return mean, self.floor + torch.nn.functional.softplus(raw)
