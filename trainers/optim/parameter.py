"""What is known of a parameter where it is updated as a whole. Imports no torch: it is part of messages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Parameter:
    """A parameter in a vector."""

    start: int
    """Where it begins."""
    shape: tuple[int, ...]
    is_hidden: bool = False
    """Whether it is a matrix, or a convolution, between the embeddings and the output layer."""
    channels_last: bool = False
    """Whether it lies as (O, H, W, I) if it is a convolution's, (O, I, H, W)."""

    @property
    def span(self) -> slice:
        """Its elements."""
        return slice(self.start, self.start + math.prod(self.shape))

    def of(self, elements: Tensor) -> Tensor:
        """Its elements (n,) as a view of its shape."""
        return shaped(elements, self.shape, self.channels_last)


def shaped(elements: Tensor, shape: tuple[int, ...], channels_last: bool) -> Tensor:
    """The elements (n,) of a parameter as a view of its shape."""
    if channels_last and len(shape) == 4:
        o, i, h, w = shape
        return elements.view(o, h, w, i).permute(0, 3, 1, 2)
    return elements.view(shape)
