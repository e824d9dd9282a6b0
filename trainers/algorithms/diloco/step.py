"""DiLoCo: each worker trains by itself for H steps, and an outer optimizer follows the mean of what they changed.

Source: Douillard et al. 2023, "DiLoCo: Distributed low-communication training of language models", algorithm 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainers.algorithms.base import Algorithm, Context, StepReport, Work
from trainers.algorithms.diloco.config import START, DilocoConfig
from trainers.algorithms.diloco.outer import OuterStep
from trainers.algorithms.local_steps import LocalSteps
from trainers.collectives.average import Average
from trainers.optim.buffers import Buffers
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
        self.context = context
        start = context.start.buffers
        self.average = Average(context.collectives, context.num_virtual, context.replica.layout.numel)
        self.average.begin(start.params)
        self.outer = OuterStep(config.outer, start, self.average.newest.device)
        self.local = LocalSteps(context, lambda _: config.average_every, self.average.newest.device)
        self.sum = context.compressed_sum()

    def step(self, work: Work) -> StepReport:
        report = self.local.step(work)
        if self.local.ends_round(work):
            with span("average"):
                theta = self.outer.take(self._changed())
                self.local.own[:, 0].copy_(theta.expand_as(self.local.own[:, 0]))
            self.local.begin_round()
        return report

    def gather_state(self) -> Buffers:
        """Parameters; on worker 0 also the outer optimizer's state, the vectors of all virtual workers, and the mean of
        their optimizer states, from which another algorithm can resume."""
        params = self.outer.theta
        if self.local.trained:
            params, _ = self.outer.after(self._average())
        elif self.local.diverged:  # resumed in the middle of a round, without a step since
            params = self.average.newest
        kept = {} if self.sum is None else self.sum.gather()
        state = self.local.gather_with_means(self.local.diverged)
        if not state:
            return Buffers(params, {})
        state |= kept | self.outer.state
        return Buffers(params, state | {START: self.outer.theta} if self.local.diverged else state)

    def finish(self) -> None:
        self.average.collectives.barrier().wait()

    def _changed(self) -> Tensor:
        """(P,) what `_average` gives, at the end of a round; where what workers send is compressed, the sum of that."""
        if self.sum is None:
            return self._average()
        shares = torch.stack([self.outer.theta - version.params for version in self.local.versions.values()])
        for rank, share in zip(self.local.ranks, shares, strict=True):
            share.mul_(self.local.trained[rank] / self.local.all_trained)
        d = self.sum.of(shares)
        return self.outer.theta - d if self.outer.config.is_none else d

    def _average(self) -> Tensor:
        """(P,) the mean of what the workers changed."""

        def weighted(rank: int, into: Tensor) -> None:
            self.outer.changed(self.local.versions[rank].params, into).mul_(self.local.trained[rank])

        self.average.update(weighted, self.local.all_trained)
        return self.average.newest
