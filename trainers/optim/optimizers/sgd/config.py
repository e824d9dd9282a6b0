"""The section of sgd in a spec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from trainers.optim.optimizers.config import Formula, OptimizerSpec

if TYPE_CHECKING:
    from trainers.optim.rule import UpdateRule


class SgdSpec(OptimizerSpec):
    """w <- w - lr g."""

    name: Literal["sgd"] = "sgd"
    lr: float = Field(default=0.1, gt=0, le=1000)
    """Learning rate, at the base batch where `batch.base` gives one."""

    @property
    def formula(self) -> Formula:
        return Formula("w <- w - rate g", "paper 4, equation 2")

    def build(self) -> UpdateRule:
        from trainers.optim.optimizers.sgd.rule import Sgd

        return Sgd()
