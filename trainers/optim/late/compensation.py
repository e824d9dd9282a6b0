"""Delay compensation: a late gradient is taken to the parameters that it meets.

Source: Zheng et al. 2017, "Asynchronous stochastic gradient descent with delay compensation", algorithm 2.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from trainers.optim.buffers import State
from trainers.optim.late.rule import LateRule

MEAN_SQUARE = "late_mean_square"
"""Under which name a checkpoint has the moving average of g g."""

EPSILON = 1e-7
"""Added to it before the root, as the source does."""


@dataclass(frozen=True)
class ConstantCompensation(LateRule):
    """DC-ASGD-c: g + lambda_0 g g (w - w')."""

    lambda_0: float

    def apply(self, g: Tensor, w: Tensor, fetched: Tensor, now: State, then: State, out: Tensor) -> Tensor:
        torch.sub(w, fetched, out=out).mul_(g).mul_(g)
        return torch.add(g, out, alpha=self.lambda_0, out=out)


@dataclass(frozen=True)
class AdaptiveCompensation(LateRule):
    """DC-ASGD-a: s <- m s + (1 - m) g g; g + lambda_0 / sqrt(s + epsilon) g g (w - w').

    s is one vector, as in the source's formula, and follows the updates in the order in which they are made, whoever
    pushed; the authors' program keeps one for each worker.
    """

    state_names: ClassVar[tuple[str, ...]] = (MEAN_SQUARE,)

    lambda_0: float
    decay: float
    """m"""

    def apply(self, g: Tensor, w: Tensor, fetched: Tensor, now: State, then: State, out: Tensor) -> Tensor:
        s = torch.mul(now[MEAN_SQUARE], self.decay, out=then[MEAN_SQUARE]).addcmul_(g, g, value=1 - self.decay)
        torch.sub(w, fetched, out=out).mul_(g).mul_(g).div_((s + EPSILON).sqrt_())
        return torch.add(g, out, alpha=self.lambda_0, out=out)
