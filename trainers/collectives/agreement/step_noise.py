"""What a synchronous step tells of the gradient noise scale (McCandlish et al. 2018, appendix A.1).

The virtual workers' gradients are those of the small batches, their sum is that of the big one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from trainers.collectives.protocol import Collectives
from trainers.collectives.reduction_tree import block
from trainers.optim.gradient_norm import block_squares, total
from trainers.optim.noise_scale import NoiseEstimate, estimate_noise
from trainers.spans import span


class StepNoise:
    """The estimate of each step: the same number on any number of workers."""

    def __init__(self, collectives: Collectives, num_virtual: int, numel: int, device: torch.device) -> None:
        """numel: elements of a block of the vector that is summed by itself. device: where the transport's vectors
        lie."""
        self.collectives, self.numel, self.device = collectives, numel, device
        blocks = [block(num_virtual, k, collectives.size) for k in range(collectives.size)]
        self.counts = [stop - start for start, stop in blocks]
        self.squares: list[Tensor] = []

    def see(self, gradient: Tensor) -> None:
        """The summed gradient (P,) of this worker's next virtual rank."""
        self.squares.append(block_squares(gradient, self.numel))

    def of(self, sizes: Sequence[int], weights: Sequence[float], norm: float) -> NoiseEstimate | None:
        """The estimate of a step; None where its minibatches differ in size, or are one. Collective.

        Args:
            sizes: Examples in the minibatch of each virtual rank.
            weights: By what the gradients that `see` was given are divided to be means; 0 where there is none.
            norm: Of the mean gradient of the step.
        """
        pairs = zip(self.squares, weights, strict=True)
        own = [total([squares]) / weight**2 if weight else 0.0 for squares, weight in pairs]
        self.squares = []
        mine = torch.tensor(own, dtype=torch.float64).view(torch.float32).to(self.device)  # transports carry float32
        received = [torch.empty(2 * count, device=self.device) for count in self.counts]
        with span("sums"):
            self.collectives.all_to_all([mine] * len(received), received).wait()
        found: list[float] = torch.cat(received).cpu().view(torch.float64).tolist()  # by virtual rank
        if len(sizes) < 2 or len(set(sizes)) > 1 or not math.isfinite(norm):
            return None
        return estimate_noise(sum(found) / len(found), norm**2, sizes[0], sum(sizes))
