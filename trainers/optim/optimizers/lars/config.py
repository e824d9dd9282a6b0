"""The section of lars in a spec."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from trainers.optim.optimizers.config import Exempt, Formula, OptimizerSpec

if TYPE_CHECKING:
    from trainers.optim.rule import Rule


class LarsSpec(OptimizerSpec):
    """v <- momentum v + lr r (g + weight_decay w), w <- w - v, with a trust ratio r of each parameter."""

    whole: ClassVar[bool] = True
    num_states: ClassVar[int | None] = 1

    name: Literal["lars"] = "lars"
    lr: float = Field(default=1.0, gt=0, le=1000)
    """Learning rate, at the base batch where `batch.base` gives one."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Share of the last update that is kept."""
    trust: float = Field(default=0.001, gt=0, le=1)
    """eta, the share of its own norm by which a layer may move an update, at a rate of 1."""
    epsilon: float = Field(default=1e-9, gt=0, le=10)
    """Added to the norm of the gradient."""
    no_decay: tuple[Exempt, ...] = ("norms", "biases")
    """Parameters without weight decay, whose trust ratio is 1; the paper adapts all: an empty list."""

    @property
    def formula(self) -> Formula:
        return Formula(
            "v <- m v + rate r (g + weight_decay w), w <- w - v, "
            "r = trust |w| / (|g| + weight_decay |w| + epsilon) of each parameter, 1 where no_decay names it",
            "You et al. 2017, algorithm 1",
        )

    def build(self) -> Rule:
        from trainers.optim.optimizers.lars.rule import Lars

        return Lars(self.momentum, self.trust, self.epsilon)
