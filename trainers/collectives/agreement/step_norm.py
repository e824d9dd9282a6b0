"""The norm of a step's gradient, of which each worker has a share."""

from __future__ import annotations

import math

import torch

from trainers.collectives.protocol import Collectives
from trainers.optim.gradient import Gradient, TensorGradient
from trainers.optim.gradient_norm import NormLimit, summed, total
from trainers.spans import span


class StepNorm:
    """By what the gradient of a step is multiplied so that its norm is within `clip.norm`.

    It is the same number on any number of workers: the sums over blocks of the vector are added in the vector's order.
    """

    def __init__(self, limit: NormLimit, collectives: Collectives, numel: int) -> None:
        """numel: of the vector that the workers share, P; it is divided as `collectives.shares` says."""
        self.limit, self.collectives = limit, collectives
        widths = [cut.stop - cut.start for cut in collectives.shares(numel)]
        self.counts = [width // limit.block for width in widths]
        width = widths[collectives.rank] if limit.norm is not None else 0
        self.share = torch.zeros(width, device=collectives.device)  # of the sum: it is read twice

    def of(self, gradient: Gradient, divisor: float, beside: float = 0.0) -> tuple[Gradient, float]:
        """This worker's share of the summed gradient, as it was or kept in memory of its own, and the factor;
        collective.

        Args:
            gradient: This worker's share of the sum, (n,).
            divisor: What makes the sum a mean.
            beside: The sum of squares of what of the summed gradient only this worker has and is in no share.
        """
        if self.limit.norm is None:
            return gradient, 1.0
        with span("sums"):
            return self._measured(gradient, divisor, beside)

    def _measured(self, gradient: Gradient, divisor: float, beside: float) -> tuple[Gradient, float]:
        squares = summed(gradient, self.share, self.limit.block)
        mine = torch.cat([squares, squares.new_tensor([beside], dtype=torch.float64).view(torch.float32)])
        received = [mine.new_empty(count + 2) for count in self.counts]
        self.collectives.all_to_all([mine] * len(received), received).wait()
        in_order = [found[-2:].clone().cpu().view(torch.float64).item() for found in received]
        norm = math.sqrt(total([found[:-2] for found in received]) + sum(in_order)) / (divisor or 1.0)
        return TensorGradient(self.share), self.limit.factor(norm)
