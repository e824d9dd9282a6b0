"""The norm of a gradient from sums over blocks of fixed size: the same bits however the vector is divided."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from trainers.optim.gradient import Gradient
from trainers.optim.optimizer import Optimizer
from trainers.optim.update import CHUNK

TINY = 1e-6
"""Added to a norm before it divides, as `torch.nn.utils.clip_grad_norm_` does."""


class NormLimit:
    """Keeps the norms of one worker's gradients within `clip.norm`, where the spec has one, and remembers them."""

    def __init__(self, optimizer: Optimizer, knows: bool = False) -> None:
        """optimizer: of the flat vector. knows: whether norms are wanted also where nothing limits them."""
        clip = optimizer.clip
        self.norm, self.value = (None, None) if clip is None else (clip.norm, clip.value)
        if knows and self.norm is None:
            self.norm = math.inf
        self.block = optimizer.block
        self.found: list[float] = []

    def factor(self, norm: float) -> float:
        """By what a gradient of this norm is multiplied; the norm is remembered."""
        self.found.append(norm)
        return self._factor(norm)

    def of(self, gradient: Tensor) -> float:
        """By what a gradient (P,), all of which is here, is multiplied; its norm is remembered."""
        return 1.0 if self.norm is None else self.factor(self._whole(gradient))

    def shorten(self, gradient: Tensor) -> None:
        """Multiply a gradient (P,) in place so that its norm is within the limit; its norm is remembered."""
        if (factor := self.of(gradient)) != 1:
            gradient.mul_(factor)

    def clipped(self, gradient: Tensor) -> Tensor:
        """A gradient (P,) within the limits of norm and elements: itself, or a copy; nothing is remembered."""
        if self.value is not None:
            return gradient.clamp(-self.value, self.value)
        factor = 1.0 if self.norm is None else self._factor(self._whole(gradient))
        return gradient if factor == 1 else gradient * factor

    def taken(self) -> tuple[float, ...]:
        """The norms since the last call, as they were before."""
        found, self.found = self.found, []
        return tuple(found)

    def _whole(self, gradient: Tensor) -> float:
        return math.sqrt(total([block_squares(gradient, self.block)]))

    def _factor(self, norm: float) -> float:
        assert self.norm is not None
        factor = self.norm / (norm + TINY)
        return 1.0 if factor >= 1 else factor  # not a number, where the norm is none


def block_squares(x: Tensor, block: int) -> Tensor:
    """The sums of squares of x (n,) over blocks of adjacent elements, (n / block,); n is a multiple of `block`."""
    chunks = torch.split(x, CHUNK) if x.device.type == "cpu" and len(x) else (x,)
    return torch.cat([chunk.square().view(-1, block).sum(1) for chunk in chunks])


def summed(gradient: Gradient, into: Tensor, block: int) -> Tensor:
    """Write a gradient (n,) into a vector, and return its sums of squares over blocks, (n / block,)."""
    chunk = CHUNK if into.device.type == "cpu" else max(len(into), 1)
    found = [into.new_empty(0)]
    for start in range(0, len(into), chunk):
        stop = min(start + chunk, len(into))
        into[start:stop].copy_(gradient.piece(start, stop))
        found.append(block_squares(into[start:stop], block))
    return torch.cat(found)


def total(squares: Sequence[Tensor]) -> float:
    """The sum of all blocks' sums, in the order of the blocks, in float64 on one thread."""
    return float(torch.cat(list(squares)).cpu().double().numpy().sum())
