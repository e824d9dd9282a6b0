"""What a reduction adds, and what one worker has of the sum."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.collectives.reduction_tree import Node, block, subtrees
from trainers.optim.gradient import Gradient


@dataclass(frozen=True)
class Reduction:
    """A canonical reduction of vectors of `numel` elements over V virtual ranks on `size` workers."""

    num_virtual: int
    size: int
    numel: int

    def nodes(self, rank: int) -> list[Node]:
        """The subtrees whose sums worker `rank` ships, from left to right."""
        return subtrees(self.num_virtual, *block(self.num_virtual, rank, self.size))


@dataclass(frozen=True)
class ReducedSpan:
    """What one worker has of the sum of a vector."""

    span: slice
    """Which part of the vector."""
    gradient: Gradient
    """The sum over it."""
