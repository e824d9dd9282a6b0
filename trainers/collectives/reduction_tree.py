"""The canonical reduction: one fixed binary tree over the virtual ranks 0 .. V - 1.

Floating-point addition is not associative, so a sum has the same bits on every number of workers only if its tree is
the same. The tree over [lo, hi) splits off the largest power of two on the left. A worker that holds a contiguous
block of leaves sums every subtree that lies wholly inside it and ships the sums; whoever reduces adds them in the
order of the tree. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Node = tuple[int, int]
"""A subtree, by the virtual ranks [lo, hi) under it."""


def middle(lo: int, hi: int) -> int:
    """Where the tree over [lo, hi) splits."""
    return lo + (1 << (hi - lo - 1).bit_length() - 1)


def block(num_virtual: int, rank: int, size: int) -> Node:
    """The contiguous virtual ranks [lo, hi) that physical worker `rank` of `size` computes."""
    return num_virtual * rank // size, num_virtual * (rank + 1) // size


def subtrees(num_virtual: int, lo: int, hi: int) -> list[Node]:
    """The largest subtrees of the tree over [0, V) that lie wholly inside [lo, hi), from left to right."""

    def inside(a: int, b: int) -> list[Node]:
        if lo <= a and b <= hi:
            return [(a, b)]
        if b <= lo or hi <= a:
            return []
        m = middle(a, b)
        return inside(a, m) + inside(m, b)

    return inside(0, num_virtual)


def joined(num_virtual: int, parts: Iterable[Node]) -> list[Node]:
    """The largest subtrees of the tree over [0, V) that some of the parts make up, from left to right."""
    known = set(parts)

    def inside(a: int, b: int) -> list[Node]:
        if (a, b) in known:
            return [(a, b)]
        if b - a == 1:
            return []
        m = middle(a, b)
        found = inside(a, m) + inside(m, b)
        return [(a, b)] if found == [(a, m), (m, b)] else found

    return inside(0, num_virtual)


def depth(node: Node) -> int:
    """Buffers needed to sum the leaves under `node` one after the other."""
    lo, hi = node
    if hi - lo == 1:
        return 1
    m = middle(lo, hi)
    return max(depth((lo, m)), depth((m, hi)) + 1)


def sum_leaves(node: Node, buffers: list[Tensor], leaf: Callable[[int, Tensor], None], adds_last: bool = True) -> None:
    """Sum the leaves under `node` into `buffers[0]` in the tree's order; `leaf(rank, into)` writes one of them.

    `buffers`: `depth(node)` vectors of equal shape; all but the first are scratch.
    adds_last: Whether the last leaf is added to the others; else `add_last` does it, part by part.
    """

    def total(lo: int, hi: int, level: int) -> None:
        if hi - lo == 1:
            leaf(lo, buffers[level])
            return
        m = middle(lo, hi)
        total(lo, m, level)
        total(m, hi, level + 1)
        if adds_last or hi != node[1]:
            buffers[level].add_(buffers[level + 1])

    total(*node, 0)


def add_last(node: Node, buffers: Sequence[Tensor], part: slice) -> None:
    """What `sum_leaves` has left of the sum under `node`, for a part of the vectors in which the last leaf is whole."""
    (lo, hi), level = node, 0
    while hi - lo > 1:
        lo, level = middle(lo, hi), level + 1
    for above in reversed(range(level)):
        buffers[above][part].add_(buffers[above + 1][part])


class Scratch:
    """Vectors for the levels of a subtree below its root, made when first needed."""

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self.levels: list[Tensor] = []

    def under(self, root: Tensor, node: Node) -> list[Tensor]:
        """`root` and as many scratch vectors as the subtree is deep, all float32: where `root` is not, another stands
        for it."""
        above = [root] if root.element_size() == 4 else []
        while len(above) + len(self.levels) < depth(node):
            zeros = self.like.new_zeros(self.like.shape)  # the gaps of the layout stay zero
            self.levels.append(zeros.float())
        return [*above, *self.levels]


@dataclass
class TreeSum:
    """The sum over all virtual ranks of a slice, from the parts that the workers shipped; a `Gradient`.

    `parts`: subtree -> (n,) as it travelled; the sum is float32.
    """

    num_virtual: int
    parts: dict[Node, Tensor]
    pull = 0.0

    def piece(self, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        """Elements [start, stop) of the sum."""
        return sum_parts((0, self.num_virtual), self.parts, slice(start, stop), out)

    def where_it_lies(self, start: int, stop: int) -> Sequence[Tensor]:
        """The parts themselves where there are no more than two, as there are of two workers."""
        if len(self.parts) > 2 or any(part.element_size() != 4 for part in self.parts.values()):
            return ()
        return [self.parts[node][start:stop] for node in sorted(self.parts)]


def sum_parts(node: Node, parts: Mapping[Node, Tensor], cut: slice, out: Tensor | None = None) -> Tensor:
    """The sum under `node` of subtrees that make it up, each (n,), over a cut of them, in float32; where the node
    itself is one of them and float32, that, not a copy. A sum is made in `out`, if it is given."""
    import torch  # not needed by processes that only plan a reduction

    part = parts.get(node)
    if part is not None:
        return part[cut].float()
    lo, hi = node
    m = middle(lo, hi)
    left, right = sum_parts((lo, m), parts, cut, out), sum_parts((m, hi), parts, cut)
    return torch.add(left, right, out=out)


def covers(num_virtual: int, nodes: Iterable[Node]) -> bool:
    """Whether disjoint subtrees hold every leaf."""
    return sum(hi - lo for lo, hi in nodes) == num_virtual
