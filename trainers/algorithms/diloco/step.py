"""DiLoCo: each worker trains by itself for H steps, and an outer optimizer follows the mean of what they changed.

Source: Douillard et al. 2023, "DiLoCo: Distributed low-communication training of language models", algorithm 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainers.algorithms.base import Algorithm, Context, StepReport, Work
from trainers.algorithms.diloco.config import START, VELOCITY, DilocoConfig
from trainers.algorithms.local_steps import LocalSteps
from trainers.collectives.average import Average
from trainers.optim.buffers import Buffers, State
from trainers.spans import span


class Diloco(Algorithm):
    """Algorithm 1 of the paper, with the virtual workers as its k workers.

    theta_i <- theta; H steps of the spec's optimizer on theta_i (lines 4 to 9), whose state stays with worker i
    d       <- mean of theta - theta_i (line 12)
    theta   <- outer optimizer (theta, d) (line 14)

    With `compress` a worker sends a part of its share of d, keeps the rest, and adds it in the next round. The mean of
    a snapshot within a round is not compressed.

    The mean weights each worker by the examples that it has trained in the round: the paper's 1/k if all have trained
    equally many, which only the last step of an epoch may change. In the middle of a round `gather_state` gives the
    parameters that an outer step would make now, but no worker continues from them.
    """

    def __init__(self, config: DilocoConfig, context: Context) -> None:
        assert context.collectives is not None
        self.context, self.outer = context, config.outer
        start = context.start.buffers
        self.average = Average(context.collectives, context.num_virtual, context.replica.layout.numel)
        self.average.begin(start.params)
        self.theta = torch.empty_like(self.average.newest).copy_(start.state.get(START, start.params))
        self.velocity: Tensor | None = None
        if self.outer.momentum:
            self.velocity = torch.zeros_like(self.theta)
            if VELOCITY in start.state:
                self.velocity.copy_(start.state[VELOCITY])
        self.local = LocalSteps(context, config.average_every, self.theta.device)
        self.sum = context.compressed_sum()

    def step(self, work: Work) -> StepReport:
        report = self.local.step(work)
        if self.local.ends_round(work):
            with span("average"):
                self.theta, self.velocity = self._outer_step(self._changed())
                self.local.own[:, 0].copy_(self.theta.expand_as(self.local.own[:, 0]))
            self.local.begin_round()
        return report

    def gather_state(self) -> Buffers:
        """Parameters; on worker 0 also the outer optimizer's state, the vectors of all virtual workers, and the mean of
        their optimizer states, from which another algorithm can resume."""
        params = self.theta
        if self.local.trained:
            params, _ = self._outer_step(self._average())
        elif self.local.diverged:  # resumed in the middle of a round, without a step since
            params = self.average.newest
        own, kept = self.local.gather(), {} if self.sum is None else self.sum.gather()
        if not own:
            return Buffers(params, {})
        ranks = range(self.context.num_virtual)
        state: State = {n: torch.stack([own[f"{n}-{k}"] for k in ranks]).mean(0) for n in self.local.names[1:]}
        state |= kept
        if self.velocity is not None:
            state[VELOCITY] = self.velocity
        if self.local.diverged:
            return Buffers(params, state | own | {START: self.theta})
        return Buffers(params, state | {name: vector for name, vector in own.items() if not name.startswith("x-")})

    def finish(self) -> None:
        self.average.collectives.barrier().wait()

    def _changed(self) -> Tensor:
        """(P,) what `_average` gives, at the end of a round; where what workers send is compressed, the sum of that."""
        if self.sum is None:
            return self._average()
        shares = torch.stack([self.theta - version.params for version in self.local.versions.values()])
        for rank, share in zip(self.local.ranks, shares, strict=True):
            share.mul_(self.local.trained[rank] / self.local.all_trained)
        d = self.sum.of(shares)
        return self.theta - d if self.outer.is_none else d

    def _average(self) -> Tensor:
        """(P,) the mean of what the workers changed, start minus end; without an outer step that of their parameters,
        to the bit, as theta - (theta - mean) would not be."""

        def weighted(rank: int, into: Tensor) -> None:
            x = self.local.versions[rank].params
            changed = into.copy_(x) if self.outer.is_none else torch.sub(self.theta, x, out=into)
            changed.mul_(self.local.trained[rank])

        self.average.update(weighted, self.local.all_trained)
        return self.average.newest

    def _outer_step(self, d: Tensor) -> tuple[Tensor, Tensor | None]:
        """Parameters (P,) and velocity (P,) after it, in new memory."""
        outer, theta = self.outer, self.theta
        if outer.is_none:
            return d.clone(), None
        if self.velocity is None:
            return torch.sub(theta, d, alpha=outer.lr), None
        velocity = (self.velocity * outer.momentum).add_(d)
        step = torch.add(d, velocity, alpha=outer.momentum) if outer.nesterov else velocity
        return torch.sub(theta, step, alpha=outer.lr), velocity
