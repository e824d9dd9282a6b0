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

    @property
    def pull(self) -> float:
        """Strength of the pull towards z - u, where there is one (`where_it_lies`)."""

    def where_it_lies(self, start: int, stop: int) -> Sequence[Tensor]:
        """The vectors in memory of which a piece is made, each (stop - start,) float32: the piece; two, whose sum it
        is; or three, g, z and u, where it is g + pull (w - z + u) of the parameters w. None, where it is made of
        others."""


@dataclass(frozen=True)
class TensorGradient:
    """A gradient held in one tensor, (n,) of any floating type."""

    vector: Tensor
    pull = 0.0

    def piece(self, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        return self.vector[start:stop].float()

    def where_it_lies(self, start: int, stop: int) -> Sequence[Tensor]:
        return (self.vector[start:stop],) if self.vector.dtype == torch.float32 else ()
