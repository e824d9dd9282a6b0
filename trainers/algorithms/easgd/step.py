"""Elastic averaging SGD, asynchronous, without momentum and with it.

Source: Zhang, Choromanska, LeCun 2015, "Deep learning with elastic averaging SGD", algorithms 1 and 2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainers.algorithms.base import Algorithm, Context, StepReport, Work
from trainers.algorithms.easgd.config import EasgdConfig
from trainers.algorithms.local_step import LocalStep
from trainers.algorithms.rounds import Rounds
from trainers.links.encoding import round_to
from trainers.optim.buffers import Buffers, State
from trainers.spans import span


class Easgd(Algorithm):
    """Worker i of algorithm 1; with delta > 0 of algorithm 2. The shards are the master.

    x <- x_i
    if tau divides t_i: x_i <- x_i - alpha (x - centre); centre <- centre + alpha (x - centre)
    x_i <- x_i - rate g(x); with delta: v <- delta v - rate g(x + delta v); x_i <- x_i + v

    The force alpha (x - centre) is pushed once the last step of a period is made, so that the push covers that, and
    acts on x_i with the next step, whose gradient is that at x, as above. The end of a lease ends a period too. In
    place of - rate g stands the step of the spec's optimizer.
    """

    def __init__(self, config: EasgdConfig, context: Context) -> None:
        self.context, self.alpha, self.delta = context, config.alpha_of(context.num_virtual), config.delta
        self.rounds = Rounds(context, config.tau, config.max_staleness)
        self.one = LocalStep(context, context.replica.device)
        self.x: Tensor | None = None  # (P,) x_i, once the centre was fetched, where it begins
        self.state: State = {}  # of the optimizer
        self.v = torch.zeros_like(self.one.gradient) if self.delta else self.one.gradient[:0]
        self.force: Tensor | None = None  # (P,) that was pushed, and is still to act on x_i

    def step(self, work: Work) -> StepReport:
        (minibatch,) = work.minibatches
        if self.x is None:
            self.x = self.rounds.fetch().to(self.v.device, copy=True)
            self.state = self.context.optimizer.initial_state(self.x)
        x, lr = self.x, self.context.schedule(self.rounds.seen)
        ahead = self.v.mul_(self.delta).add_(x) if self.delta else x  # x + delta v
        total = self.one.compute(ahead, minibatch)
        with span("update"):
            self.one.apply(Buffers(ahead, self.state), lr, self.rounds.seen)
            if self.delta:
                self.x, self.v = ahead, torch.sub(ahead, x, out=x)
            if self.force is not None:
                self.x.sub_(self.force)
        self.force = None
        if self.rounds.count(work, work.examples):
            self._pull(work.epoch, self.x)
        return StepReport(total, work.examples, lr, norms=self.one.limit.taken())

    def finish(self) -> None:
        self.rounds.leave()

    def _pull(self, epoch: int, x: Tensor) -> None:
        self.force = torch.sub(x, self.rounds.fetch().to(x.device)).mul_(self.alpha)
        round_to(self.force, self.context.wire)  # here as well as there
        self.rounds.push(epoch, -self.force)  # which the shards subtract
