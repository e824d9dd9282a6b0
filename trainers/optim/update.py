"""The update of a slice in one pass: sum, division, weight decay and rule for one chunk after the other, in the cache.

This reads a gradient of many megabytes only once, at the speed of the memory. Operations on the whole vector would each
read and write it again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainers.optim.buffers import Buffers
from trainers.optim.gradient import Gradient
from trainers.optim.rule import UpdateRule
from trainers.optim.slices import within

CHUNK = 128 * 1024
"""Elements per chunk on a CPU: half a dozen such float32 vectors fit in the shared cache, and the overhead of torch (2
us per operation) is small against the work. Measured against 16 K to 512 K elements."""


@dataclass(frozen=True)
class Contribution:
    """What one update needs: a gradient, what to divide it by, and the learning rate."""

    gradient: Gradient
    divisor: float
    """The weight of the examples if the gradient is a sum over them; 1 if it is a mean already."""
    lr: float
    decays: int = 1
    """Factor of the weight decay: the number of minibatches whose gradients were accumulated."""
    correction: float = 1.0
    """`momentum_correction` from the last learning rate to `lr`."""


class SliceUpdate:
    """Applies contributions to a slice of n elements, one after the other."""

    def __init__(
        self, rule: UpdateRule, weight_decay: float, numel: int, device: torch.device, exempt: Sequence[slice] = ()
    ) -> None:
        """exempt: parts of the slice without weight decay."""
        self.rule = rule
        self.weight_decay = weight_decay
        self.numel = numel
        self.chunk = CHUNK if device.type == "cpu" else max(numel, 1)
        self.scratch = torch.empty(min(self.chunk, max(numel, 1)), device=device)
        self.decoupled = torch.empty_like(self.scratch) if rule.decouples_decay and weight_decay else None
        starts = range(0, numel, self.chunk)
        self.exempt = {start: within(exempt, slice(start, start + self.chunk)) for start in starts}

    def apply(self, contributions: Sequence[Contribution], current: Buffers, following: Buffers) -> None:
        """Apply the contributions to `current` and write the result into `following`.

        Several contributions in one call give the same bits as one call for each.
        """
        for start in range(0, self.numel, self.chunk):
            chunk = slice(start, min(start + self.chunk, self.numel))
            newest, target = current.part(chunk), following.part(chunk)
            for contribution in contributions:
                g = self._mean_gradient(contribution, newest.params, chunk)
                if self.decoupled is not None:
                    newest = Buffers(self._decayed(contribution, newest.params, chunk), newest.state)
                self.rule.apply(newest, g, target, contribution.lr, contribution.correction)
                newest = target

    def _mean_gradient(self, contribution: Contribution, w: Tensor, chunk: slice) -> Tensor:
        """The gradient of a chunk, divided by the examples in it, with the weight decay of the parameters w added."""
        g = piece = contribution.gradient.piece(chunk.start, chunk.stop)
        scratch = self.scratch[: chunk.stop - chunk.start]
        if contribution.divisor != 1:
            g = torch.div(g, contribution.divisor, out=scratch)
        if self.weight_decay and self.decoupled is None:
            g = torch.add(g, w, alpha=self.weight_decay * contribution.decays, out=scratch)
            # Added to every element and then taken back where it is not wanted: whether an element goes through a
            # vector instruction must not depend on its neighbours, and a division gives the same bits either way.
            for part in self.exempt[chunk.start]:
                torch.div(piece[part], contribution.divisor, out=scratch[part])
        return g

    def _decayed(self, contribution: Contribution, w: Tensor, chunk: slice) -> Tensor:
        """The parameters w of a chunk after a decay that is no part of the gradient; w itself stays as it is."""
        assert self.decoupled is not None
        factor = 1 - contribution.lr * self.weight_decay * contribution.decays
        decayed = torch.mul(w, factor, out=self.decoupled[: len(w)])
        for part in self.exempt[chunk.start]:
            decayed[part] = w[part]
        return decayed
