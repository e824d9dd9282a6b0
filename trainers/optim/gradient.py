"""Gradients of a slice of the parameters."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class Gradient(Protocol):
    """The gradient of a slice, or a sum of gradients, computed piece by piece."""

    def piece(self, start: int, stop: int) -> Tensor:
        """Elements [start, stop) of the slice, (stop - start,) float32; valid until the next call."""


@dataclass(frozen=True)
class TensorGradient:
    """A gradient held in one tensor, (n,) of any floating type."""

    vector: Tensor

    def piece(self, start: int, stop: int) -> Tensor:
        return self.vector[start:stop].float()
