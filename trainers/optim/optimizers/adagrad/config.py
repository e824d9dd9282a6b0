"""The section of adagrad in a spec."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from trainers.optim.optimizers.config import Formula, OptimizerSpec

if TYPE_CHECKING:
    from trainers.optim.rule import UpdateRule


class AdagradSpec(OptimizerSpec):
    """s <- s + g^2, w <- w - lr g / (sqrt(s) + epsilon) (Duchi et al. 2011; on the server in Dean et al. 2012)."""

    num_states: ClassVar[int | None] = 1

    name: Literal["adagrad"] = "adagrad"
    lr: float = Field(default=0.003, gt=0, le=1000)
    """Learning rate, at the base batch where `batch.base` gives one."""
    epsilon: float = Field(default=1e-10, gt=0, le=10)
    """Added to the root."""

    @property
    def formula(self) -> Formula:
        return Formula("s <- s + g^2, w <- w - rate g / (sqrt(s) + epsilon)", "Duchi et al. 2011")

    def build(self) -> UpdateRule:
        from trainers.optim.optimizers.adagrad.rule import Adagrad

        return Adagrad(self.epsilon)
