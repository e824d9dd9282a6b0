"""The section of lamb in a spec."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from trainers.optim.optimizers.config import Exempt, Formula, OptimizerSpec
from trainers.optim.optimizers.groups import Share

if TYPE_CHECKING:
    from trainers.optim.rule import Rule


class LambSpec(OptimizerSpec):
    """w <- w - lr (|w| / |u|) u, where u is Adam's direction and weight_decay w, of each parameter."""

    whole: ClassVar[bool] = True
    num_states: ClassVar[int | None] = 3

    name: Literal["lamb"] = "lamb"
    lr: float = Field(default=0.001, gt=0, le=1000)
    """Learning rate, at the base batch where `batch.base` gives one."""
    betas: tuple[Share, Share] = (0.9, 0.999)
    """Shares of the mean gradient and of the mean square that are kept."""
    epsilon: float = Field(default=1e-6, gt=0, le=10)
    """Added to the root."""
    weight_decay: float = Field(default=0.01, ge=0, le=1)
    """A part of the direction, whose norm it counts in."""
    no_decay: tuple[Exempt, ...] = ("norms", "biases")
    """Parameters without weight decay, whose trust ratio is 1, as in the authors' implementation."""

    @property
    def formula(self) -> Formula:
        return Formula(
            "m <- b1 m + (1 - b1) g, s <- b2 s + (1 - b2) g^2, "
            "u = (m / (1 - b1^t)) / (sqrt(s / (1 - b2^t)) + epsilon) + weight_decay w, "
            "w <- w - rate (|w| / |u|) u of each parameter, the quotient 1 where no_decay names it",
            "You et al. 2020, algorithm 2",
        )

    def build(self) -> Rule:
        from trainers.optim.optimizers.lamb.rule import Lamb

        return Lamb(self.betas, self.epsilon)
