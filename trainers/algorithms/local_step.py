"""One step on parameters and an optimizer state that nobody else updates."""

from __future__ import annotations

import torch
from torch import Tensor

from trainers.algorithms.base import Context, Minibatch
from trainers.models.objective import Total
from trainers.optim.buffers import Buffers
from trainers.optim.gradient import TensorGradient
from trainers.optim.gradient_norm import NormLimit
from trainers.optim.scaling import momentum_correction
from trainers.optim.update import Contribution, SliceUpdate


class LocalStep:
    """The spec's optimizer, on the mean gradient of one minibatch."""

    def __init__(self, context: Context, device: torch.device, gradient: Tensor | None = None) -> None:
        """gradient: (P,), where somebody else computes it."""
        numel = context.replica.layout.numel
        self.replica = context.replica
        self.gradient = torch.zeros(numel, device=device) if gradient is None else gradient
        self.limit = NormLimit(context.optimizer)
        self.update = SliceUpdate(context.optimizer, numel, device)
        self.learning_rate = 0.0  # of the last step; 0 before the first

    def compute(self, params: Tensor, minibatch: Minibatch) -> Total:
        """The gradient at these parameters (P,), which `apply` takes. Returns the summed loss."""
        assert minibatch.batch is not None
        rank = minibatch.virtual_rank
        return self.replica.gradient(params, minibatch.batch, self.gradient, mean=True, virtual_rank=rank)

    def apply(self, version: Buffers, lr: float, examples: int, before: float | None = None) -> None:
        """Update in place; examples: trained before. before: the rate of the last step, if this is not it."""
        correction = momentum_correction(self.learning_rate if before is None else before, lr)
        gradient, scale = TensorGradient(self.gradient), self.limit.of(self.gradient)
        contribution = Contribution(gradient, 1, lr, correction=correction, seen=examples, scale=scale)
        self.update.apply([contribution], version, version)
        self.learning_rate = lr
