"""The section of momentum in a spec."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from trainers.optim.optimizers.config import Formula, OptimizerSpec

if TYPE_CHECKING:
    from trainers.optim.rule import UpdateRule


class MomentumSpec(OptimizerSpec):
    """u <- momentum u + g, w <- w - lr u (paper 4, equation 9); or equation 10."""

    num_states: ClassVar[int | None] = 1

    name: Literal["momentum"] = "momentum"
    lr: float = Field(default=0.02, gt=0, le=1000)
    """Learning rate, at the base batch where `batch.base` gives one."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Share of the last update that is kept."""
    equation: Literal[9, 10] = 9
    """Of paper 4, section 3. 10 absorbs the rate: v <- momentum v + lr g, w <- w - v."""
    momentum_correction: bool = True
    """In equation 10: multiply v by the new rate over the old one whenever the rate changes, which keeps it equal to
    equation 9 (paper 4, remark 2). Paper 1 had none."""

    @model_validator(mode="after")
    def _correction_is_the_runs(self) -> Self:
        corrects = self.equation == 10 and self.momentum_correction
        if corrects and any(group.schedule is not None for group in self.groups):
            raise ValueError(
                "momentum_correction follows the run's rate, not that of a group with a schedule of its own; "
                "set it to false, or take equation 9"
            )
        return self

    @property
    def formula(self) -> Formula:
        if self.equation == 9:
            return Formula("u <- m u + g, w <- w - rate u", "paper 4, section 3, equation 9")
        corrected = "m (rate / rate before) v" if self.momentum_correction else "m v"
        return Formula(f"v <- {corrected} + rate g, w <- w - v", "paper 4, section 3, equation 10")

    def build(self) -> UpdateRule:
        from trainers.optim.optimizers.momentum.rule import Momentum, Velocity

        return Velocity(self.momentum, self.momentum_correction) if self.equation == 10 else Momentum(self.momentum)
