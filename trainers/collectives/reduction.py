"""What a reduction adds, and what one worker has of the sum. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from trainers.collectives.reduction_tree import Node, block, subtrees
from trainers.links.names import NUM_BYTES, WireName

if TYPE_CHECKING:
    from trainers.optim.gradient import Gradient


@cache
def _nodes(num_virtual: int, size: int, rank: int) -> tuple[Node, ...]:
    return tuple(subtrees(num_virtual, *block(num_virtual, rank, size)))


@dataclass(frozen=True)
class Reduction:
    """A canonical reduction of vectors of `numel` elements over V virtual ranks on `size` workers.

    The vector of each virtual rank is rounded to `wire` once, also where it does not travel, and added in float32. So
    the sum has the same bits on any number of workers, and only single ranks' vectors travel in fewer bytes: to round
    the sum of several would show who has which.
    """

    num_virtual: int
    size: int
    numel: int
    wire: WireName = "float32"

    def nodes(self, rank: int) -> list[Node]:
        """The subtrees whose sums worker `rank` ships, from left to right."""
        return list(_nodes(self.num_virtual, self.size, rank))

    def wire_of(self, node: Node) -> WireName:
        """In which numbers the sum of a subtree travels."""
        return self.wire if node[1] - node[0] == 1 else "float32"

    def nodes_by_wire(self, rank: int) -> dict[WireName, list[Node]]:
        """`nodes`, by the numbers in which they travel; the same numbers on every worker, also where there are none."""
        used = {self.wire_of(node) for k in range(self.size) for node in self.nodes(k)}
        return {wire: [n for n in self.nodes(rank) if self.wire_of(n) == wire] for wire in NUM_BYTES if wire in used}

    def num_bytes(self, rank: int) -> int:
        """What worker `rank` ships for each element."""
        return sum(NUM_BYTES[self.wire_of(node)] for node in self.nodes(rank))


@dataclass(frozen=True)
class ReducedSpan:
    """What one worker has of the sum of a vector."""

    span: slice
    """Which part of the vector."""
    gradient: Gradient
    """The sum over it."""
