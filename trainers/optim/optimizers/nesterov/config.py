"""The section of nesterov in a spec."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from trainers.optim.optimizers.config import Formula, OptimizerSpec

if TYPE_CHECKING:
    from trainers.optim.rule import UpdateRule


class NesterovSpec(OptimizerSpec):
    """u <- momentum u + g, w <- w - lr (g + momentum u)."""

    num_states: ClassVar[int | None] = 1

    name: Literal["nesterov"] = "nesterov"
    lr: float = Field(default=0.05, gt=0, le=1000)
    """Learning rate, at the base batch where `batch.base` gives one."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Share of the last update that is kept."""

    @property
    def formula(self) -> Formula:
        return Formula("u <- m u + g, w <- w - rate (g + m u)", "paper 4, section 5.1")

    def build(self) -> UpdateRule:
        from trainers.optim.optimizers.nesterov.rule import Nesterov

        return Nesterov(self.momentum)
