"""Downpour with `push: delta`: asynchronous local SGD.

Source: Liu et al. 2024, "Asynchronous local-SGD training for language modeling", algorithms 1 and 2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainers.algorithms.base import Algorithm, Context, StepReport, Work
from trainers.algorithms.downpour.config import DownpourConfig
from trainers.algorithms.local_step import LocalStep
from trainers.algorithms.rounds import Rounds
from trainers.optim.buffers import Buffers
from trainers.spans import span


class DeltaPushes(Algorithm):
    """A worker, again and again:

    theta <- fetch; x <- theta; H steps of the spec's optimizer on x, whose state stays with the worker
    push theta - x, to which the shards apply the outer rule as to a gradient

    The end of a lease ends a round, too.
    """

    def __init__(self, config: DownpourConfig, context: Context) -> None:
        self.context = context
        self.rounds = Rounds(context, config.num_steps, config.max_staleness)
        self.one = LocalStep(context, context.replica.device)
        x = torch.zeros_like(self.one.gradient)
        self.own = Buffers(x, context.optimizer.initial_state(x))
        self.theta: Tensor  # (P,) as fetched

    def step(self, work: Work) -> StepReport:
        (minibatch,) = work.minibatches
        if self.rounds.made == 0:
            self.theta = self.rounds.fetch()
            self.own.params.copy_(self.theta)
        lr = self.context.schedule(self.rounds.seen)
        total = self.one.compute(self.own.params, minibatch)
        with span("update"):
            self.one.apply(self.own, lr, self.rounds.seen)
        if self.rounds.count(work):
            self.rounds.push(work.epoch, self.theta - self.own.params.to(self.theta.device))
        return StepReport(total, work.examples, lr, norms=self.one.limit.taken())

    def finish(self) -> None:
        self.rounds.store.leave()
