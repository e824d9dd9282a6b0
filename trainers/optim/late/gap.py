"""A late gradient counts the less the further the parameters have moved meanwhile.

Source: Barkai et al. 2020, "Gap-aware mitigation of gradient staleness".
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from trainers.optim.buffers import State
from trainers.optim.late.rule import LateRule

MEAN_SQUARE_STEP = "late_mean_square_step"
"""Under which name a checkpoint has the moving average of the squared steps; 0: the parameter has not moved yet."""

EPSILON = 1e-12
"""Added to C, which is 0 where a parameter has not moved. Below float32's resolution of any parameter above 1e-5."""


@dataclass(frozen=True)
class GapPenalty(LateRule):
    """g / (1 + |w - w'| / C), with C the root of a moving average of the squared steps of the parameter.

    So the gap is counted in steps: 1 + the staleness is what g is divided by if all steps had one size and direction.
    """

    state_names: ClassVar[tuple[str, ...]] = (MEAN_SQUARE_STEP,)
    sees_steps: ClassVar[bool] = True

    decay: float

    def apply(self, g: Tensor, w: Tensor, fetched: Tensor, now: State, then: State, out: Tensor) -> Tensor:
        torch.sub(w, fetched, out=out).abs_().div_(now[MEAN_SQUARE_STEP].sqrt().add_(EPSILON)).add_(1)
        return torch.div(g, out, out=out)

    def follow(self, step: Tensor, now: State, then: State) -> None:
        s, square = now[MEAN_SQUARE_STEP], step.square()
        torch.where(s == 0, square, torch.lerp(square, s, self.decay), out=then[MEAN_SQUARE_STEP])
