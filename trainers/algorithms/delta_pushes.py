"""`push: delta`: asynchronous local SGD.

Source: Liu et al. 2024, "Asynchronous local-SGD training for language modeling", algorithms 1 and 2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainers.algorithms.base import Algorithm, Context, StepReport, Work
from trainers.algorithms.local_step import LocalStep
from trainers.algorithms.rounds import Rounds
from trainers.models.objective import Total
from trainers.optim.buffers import Buffers
from trainers.spans import span


class DeltaPushes(Algorithm):
    """A worker, again and again:

    theta <- fetch; x <- theta; H steps of the spec's optimizer on x, whose state stays with the worker
    push theta - x, to which the shards apply the outer rule as to a gradient

    The end of a lease ends a round, too.
    """

    def __init__(self, context: Context, steps: int, max_staleness: int | None) -> None:
        """steps: H. max_staleness: in rounds."""
        self.context = context
        self.rounds = Rounds(context, steps, max_staleness)
        self.one = self._local_step()
        x = torch.zeros_like(self.one.gradient)
        self.own = Buffers(x, context.optimizer.initial_state(x))
        self.theta: Tensor  # (P,) as fetched, or where the round began if it began apart
        self.is_apart = False  # whether this round, or the one that it goes on with, began without the shards

    def step(self, work: Work) -> StepReport:
        if self.rounds.made == 0:
            self._begin_round()
        lr = self.context.schedule(self.rounds.seen)
        total = self._gradient(work)
        with span("update"):
            self.one.apply(self.own, lr, self.rounds.seen)
        ends, is_apart = self.rounds.count(work, self._examples(work)), self.is_apart
        if ends and (work.ends_lease or self._is_heard()):
            self._end_round(work.epoch)
        return StepReport(total, work.examples, lr, norms=self.one.limit.taken(), is_apart=is_apart)

    def finish(self) -> None:
        self.rounds.leave()

    # -- what a group of workers does together ------------------------------------------------------------------------

    def _local_step(self) -> LocalStep:
        return LocalStep(self.context, self.context.replica.device)

    def _begin_round(self) -> None:
        """Go on from what the shards have."""
        self.theta = self.rounds.fetch()
        self.own.params.copy_(self.theta)

    def _gradient(self, work: Work) -> Total:
        """That of a step at one's own parameters, where `self.one` takes it from. Returns this worker's summed loss."""
        (minibatch,) = work.minibatches
        return self.one.compute(self.own.params, minibatch)

    def _is_heard(self) -> bool:
        """Whether the shards can be told of the round that is over; else it goes on."""
        return True

    def _examples(self, work: Work) -> int:
        """That a step trains."""
        return work.examples

    def _end_round(self, epoch: int) -> None:
        """Push what it changed."""
        self.rounds.push(epoch, self.theta - self.own.params.to(self.theta.device))
