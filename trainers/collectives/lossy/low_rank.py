"""PowerSGD: a sum over the virtual workers of matrices of low rank.

Source: Vogels et al. 2019, "PowerSGD: Practical low-rank gradient compression for distributed optimization", algorithms
1 and 2.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from trainers.collectives.lossy.compressed import KeptRows
from trainers.collectives.protocol import Collectives
from trainers.collectives.reduction import Reduction
from trainers.collectives.reduction_tree import Scratch, sum_leaves, sum_parts
from trainers.optim.buffers import State
from trainers.optim.compress.config import COLUMNS
from trainers.optim.compress.low_rank import LowRank, first_columns, orthonormal
from trainers.spans import span


class LowRankSum:
    """With M_k what virtual worker k has to send of a matrix, and what it has kept; Q is what the last sum left:

    P <- sum of M_k Q, with its columns made orthonormal;  Q_k <- M_k' P;  Q <- sum of Q_k
    P Q' is the sum;  P Q_k' is what worker k has sent, and M_k - P Q_k' what it keeps

    Both sums are made in the canonical order, so they have the same bits on any number of workers: each sends what its
    own virtual workers add up to, one or a few subtrees, to every other. What is no matrix, or not smaller in this
    form, travels as it is, with the first of them.
    """

    def __init__(
        self, collectives: Collectives, num_virtual: int, low_rank: LowRank, numel: int, seed: int, start: State
    ) -> None:
        """numel: P. seed: of the first Q. start: what the virtual workers have kept, and Q, by their names."""
        self.rows = KeptRows(collectives, num_virtual, numel, start)
        self.kept, self.low_rank = self.rows.kept, low_rank
        self.others = low_rank.others.to(collectives.device)
        self.columns = first_columns(low_rank, seed).to(collectives.device)  # Q, of all matrices
        self.total = torch.zeros(numel, device=collectives.device)
        if (before := start.get(COLUMNS)) is not None:
            for matrix in low_rank.matrices:
                matrix.right_of(self.columns).copy_(matrix.kept_in(before))

    def of(self, vectors: Tensor) -> Tensor:
        """The sum of what is sent of the vectors of all virtual workers, (P,), valid until the next call.

        vectors: (virtual workers here, P), only read.
        """
        self.kept += vectors
        matrices, num_left, first = self.low_rank.matrices, self.low_rank.num_left, self.rows.ranks.start

        def project(rank: int, into: Tensor) -> None:
            """M_k Q, and what is in no matrix."""
            wanted = self.kept[rank - first]
            for matrix in matrices:
                matrix.left_of(into).copy_(matrix.of(wanted) @ matrix.right_of(self.columns))
            into[num_left:] = wanted[self.others]

        left = self._summed(project, num_left + len(self.others))
        bases = [orthonormal(matrix.left_of(left)) for matrix in matrices]

        def send(rank: int, into: Tensor) -> None:
            """M_k' P, which is kept back from M_k."""
            wanted = self.kept[rank - first]
            for matrix, base in zip(matrices, bases, strict=True):
                of_worker = matrix.of(wanted).T @ base
                matrix.right_of(into).copy_(of_worker)
                matrix.of(wanted).sub_(base @ of_worker.T)
            wanted[self.others] = 0

        self.columns = self._summed(send, self.low_rank.num_right)
        for matrix, base in zip(matrices, bases, strict=True):
            matrix.of(self.total).copy_(base @ matrix.right_of(self.columns).T)
        self.total[self.others] = left[num_left:]
        return self.total

    def _summed(self, leaf: Callable[[int, Tensor], None], numel: int) -> Tensor:
        """(numel,) the sum over all virtual workers of what `leaf(rank, into)` writes."""
        collectives, num_virtual = self.rows.collectives, self.rows.num_virtual
        reduction = Reduction(num_virtual, collectives.size, numel)
        nodes = [reduction.nodes(k) for k in range(collectives.size)]
        own = self.total.new_zeros(len(nodes[collectives.rank]), numel)
        for node, row in zip(nodes[collectives.rank], own, strict=True):
            sum_leaves(node, Scratch(row).under(row, node), leaf)
        everything = [node for theirs in nodes for node in theirs]
        received = own.new_empty(len(everything), numel)
        parts = list(torch.split(received.flatten(), [len(theirs) * numel for theirs in nodes]))
        with span("sums"):
            collectives.all_to_all([own.flatten()] * len(parts), parts).wait()
        found = dict(zip(everything, received, strict=True))
        return sum_parts((0, num_virtual), found, slice(0, numel))

    def gather(self) -> State:
        """On worker 0 what each virtual worker has kept, and Q in vectors (P,); on the others nothing. Collective."""
        kept = self.rows.gather()
        if not kept:
            return {}
        columns = torch.zeros_like(self.total)
        for matrix in self.low_rank.matrices:
            matrix.kept_in(columns).copy_(matrix.right_of(self.columns))
        return kept | {COLUMNS: columns}
