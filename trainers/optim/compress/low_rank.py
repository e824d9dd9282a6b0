"""The matrices of a vector of parameters, and their product with a few columns.

Source: Vogels et al. 2019, "PowerSGD: Practical low-rank gradient compression for distributed optimization".
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Matrix:
    """A parameter (n, m), where a convolution's weights (O, I, H, W) count as (O, I H W), of which a few columns are to
    travel."""

    start: int
    """Where it begins in the vector (P,)."""
    n: int
    m: int
    rank: int
    """r, with r (n + m) < n m."""
    left: int
    """Where its (n, r) begins among those of all matrices, and where its (m, r)."""
    right: int

    def of(self, vector: Tensor) -> Tensor:
        """(n, m), a view of a vector (P,)."""
        return vector[self.start : self.start + self.n * self.m].view(self.n, self.m)

    def left_of(self, columns: Tensor) -> Tensor:
        """(n, r), a view."""
        return columns[self.left : self.left + self.n * self.rank].view(self.n, self.rank)

    def right_of(self, columns: Tensor) -> Tensor:
        """(m, r), a view."""
        return columns[self.right : self.right + self.m * self.rank].view(self.m, self.rank)

    def kept_in(self, vector: Tensor) -> Tensor:
        """(m, r), a view of the first elements that the matrix has in a vector (P,), which has room for them."""
        return vector[self.start : self.start + self.m * self.rank].view(self.m, self.rank)


@dataclass(frozen=True)
class LowRank:
    """What travels of the parameters in one vector."""

    matrices: tuple[Matrix, ...]
    num_left: int
    num_right: int
    others: Tensor
    """Where the elements lie that are in none of the matrices, and travel as they are; numbers, in order."""


def low_rank_of(parameters: Iterable[tuple[int, tuple[int, ...]]], rank: int) -> LowRank:
    """parameters: where each begins, and its shape. Those whose r (n + m) is not smaller than n m travel as they are,
    and so do vectors."""
    matrices, others = list[Matrix](), list[Tensor]()
    left = right = 0
    for start, shape in sorted(parameters):
        size, n = math.prod(shape), shape[0] if shape else 1
        m = size // max(n, 1)
        if len(shape) < 2 or rank * (n + m) >= n * m:
            others.append(torch.arange(start, start + size))
            continue
        matrices.append(Matrix(start, n, m, rank, left, right))
        left, right = left + n * rank, right + m * rank
    return LowRank(tuple(matrices), left, right, torch.cat([torch.arange(0), *others]))


def first_columns(low_rank: LowRank, seed: int) -> Tensor:
    """(num_right,) the Q with which a run begins: standard normal, by the seed."""
    return torch.randn(low_rank.num_right, generator=torch.Generator().manual_seed(seed))


def orthonormal(columns: Tensor) -> Tensor:
    """(n, r) with orthonormal columns that span those of (n, r)."""
    basis: Tensor = torch.linalg.qr(columns).Q
    return basis
