"""What all virtual workers go on from after a round: the means of their parameters and optimizer states."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from trainers.algorithms.base import Context
from trainers.algorithms.local_steps import LocalSteps
from trainers.algorithms.parallel_sgd.config import START
from trainers.collectives.average import Average
from trainers.optim.buffers import State


class Means(ABC):
    """The means of x and of each vector of the optimizer's state, weighted by the examples of the round."""

    @abstractmethod
    def take(self) -> Tensor:
        """At the end of a round: what all go on from, (1 + states, P), x first."""

    @abstractmethod
    def now(self) -> Tensor:
        """The same as a snapshot, from which nobody goes on."""

    @abstractmethod
    def gather(self) -> State:
        """On worker 0 what else a checkpoint needs; on the others nothing. Collective."""


def weighted_means(average: Average, local: LocalSteps, rows: slice) -> None:
    """Make an average anew, of these rows of each virtual worker's vectors."""
    first = local.ranks.start

    def weighted(rank: int, into: Tensor) -> None:
        into.copy_(local.own[rank - first, rows].flatten()).mul_(local.trained[rank])

    average.update(weighted, local.all_trained)


class WholeMeans(Means):
    """All of it in one vector."""

    def __init__(self, context: Context, local: LocalSteps, first: Tensor) -> None:
        """first: (1 + states, P) with which the run begins."""
        self.local = local
        self.average = Average(local.collectives, context.num_virtual, first.numel())
        self.average.begin(first.flatten())

    def take(self) -> Tensor:
        weighted_means(self.average, self.local, slice(None))
        return self.average.newest.view(-1, self.local.numel)

    def now(self) -> Tensor:
        if self.local.trained:
            return self.take()
        return self.average.newest.view(-1, self.local.numel)

    def gather(self) -> State:
        return {}


class CompressedMeans(Means):
    """With x the parameters of a round's beginning, x_r those to which virtual worker r came, and its share of the
    examples, n_r / n, as weight:

    (x - x_r) n_r / n, and what r has kept, are compressed; x <- x - the sum of what is sent

    The optimizer's state travels whole. It is no sum of changes: a velocity forgets what is kept back, which would come
    on top of what has taken its place, and squares might become negative.
    """

    def __init__(self, context: Context, local: LocalSteps, first: Tensor) -> None:
        """first: (1 + states, P) with which the run begins."""
        self.local = local
        among = local.collectives, context.num_virtual
        self.params = Average(*among, local.numel, "average-params")  # of a snapshot; nobody goes on from it
        self.params.begin(first[0])
        self.states: Average | None = None
        if len(first) > 1:
            self.states = Average(*among, first[1:].numel(), "average-states")
            self.states.begin(first[1:].flatten())
        self.x = context.start.buffers.state.get(START, first[0]).to(local.own.device, copy=True)
        summed = context.compressed_sum()
        assert summed is not None
        self.sum = summed

    def take(self) -> Tensor:
        local = self.local
        shares = torch.stack([self.x - version.params for version in local.versions.values()])
        for rank, share in zip(local.ranks, shares, strict=True):
            share.mul_(local.trained[rank] / local.all_trained)
        self.x = self.x - self.sum.of(shares)
        return self._beside(self.x)

    def now(self) -> Tensor:
        if not self.local.diverged:
            return self._beside(self.x)
        if self.local.trained:  # else resumed in the middle of a round, without a step since
            weighted_means(self.params, self.local, slice(0, 1))
        return self._beside(self.params.newest)

    def gather(self) -> State:
        kept = self.sum.gather()
        return kept | {START: self.x} if kept and self.local.diverged else kept

    def _beside(self, x: Tensor) -> Tensor:
        """These parameters, and the means of the states."""
        if self.states is None:
            return x.view(1, -1)
        if self.local.trained:
            weighted_means(self.states, self.local, slice(1, None))
        return torch.cat([x.view(1, -1), self.states.newest.view(-1, self.local.numel)])
