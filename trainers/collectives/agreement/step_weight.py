"""What the sum of a step's gradients is divided by."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trainers.collectives.protocol import Collectives
from trainers.collectives.reduction_tree import block
from trainers.spans import span


class StepWeight:
    """The weight of a step's minibatches over all virtual workers: the same number on any number of workers."""

    def __init__(
        self, per_example: float | None, collectives: Collectives, num_virtual: int, device: torch.device
    ) -> None:
        """per_example: what each example weighs; None where only the loss tells, so that workers tell each other.
        device: where the transport's vectors lie."""
        self.per_example, self.collectives, self.device = per_example, collectives, device
        blocks = [block(num_virtual, k, collectives.size) for k in range(collectives.size)]
        self.counts = [stop - start for start, stop in blocks]

    def of(self, examples: int, own: Sequence[float]) -> float:
        """The weight of a step; collective.

        Args:
            examples: of all virtual workers.
            own: the weights of this worker's minibatches, by virtual rank; 0 where there is none.
        """
        if self.per_example is not None:
            return examples * self.per_example
        if self.collectives.size == 1:
            return sum(own)
        mine = torch.tensor(own, dtype=torch.float64).view(torch.float32).to(self.device)  # transports carry float32
        received = [torch.empty(2 * count, device=self.device) for count in self.counts]
        with span("sums"):
            self.collectives.all_to_all([mine] * len(received), received).wait()
        weights: list[float] = torch.cat(received).cpu().view(torch.float64).tolist()
        return sum(weights)  # in the order of the virtual ranks
