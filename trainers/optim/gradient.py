"""Gradients of a slice of the parameters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Gradient(Protocol):
    """The gradient of a slice, or a sum of gradients, computed piece by piece."""

    def piece(self, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        """Elements [start, stop) of the slice, (stop - start,) float32; valid until the next call.

        out: (stop - start,) float32, for what has to be computed. It does so in the cache, where the memory of a new
            tensor may not be. None: in a new one.
        """

    def addends(self, start: int, stop: int) -> Sequence[Tensor]:
        """One or two vectors that lie in memory, (stop - start,) float32, whose sum the piece is; none where there is
        more to compute."""


@dataclass(frozen=True)
class TensorGradient:
    """A gradient held in one tensor, (n,) of any floating type."""

    vector: Tensor

    def piece(self, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        return self.vector[start:stop].float()

    def addends(self, start: int, stop: int) -> Sequence[Tensor]:
        return (self.vector[start:stop],) if self.vector.dtype == torch.float32 else ()
