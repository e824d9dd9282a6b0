"""The sections of adam and adamw in a spec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from trainers.optim.optimizers.config import Formula, OptimizerSpec

if TYPE_CHECKING:
    from trainers.optim.rule import UpdateRule

Beta = Annotated[float, Field(ge=0, lt=1)]


class AdamSpec(OptimizerSpec):
    """m <- b1 m + (1 - b1) g, s <- b2 s + (1 - b2) g^2, w <- w - lr m' / (sqrt(s') + epsilon), m' and s' corrected."""

    num_states: ClassVar[int | None] = 3

    name: Literal["adam"] = "adam"
    lr: float = Field(default=0.001, gt=0, le=1000)
    """Learning rate, at the base batch where `batch.base` gives one."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Shares of the mean gradient and of the mean square that are kept."""
    epsilon: float = Field(default=1e-8, gt=0, le=10)
    """Added to the root."""

    @property
    def formula(self) -> Formula:
        return Formula(
            "m <- b1 m + (1 - b1) g, s <- b2 s + (1 - b2) g^2, "
            "w <- w - rate (m / (1 - b1^t)) / (sqrt(s / (1 - b2^t)) + epsilon)",
            "Kingma and Ba 2015, algorithm 1",
        )

    def build(self) -> UpdateRule:
        from trainers.optim.optimizers.adam.rule import Adam

        return Adam(self.betas, self.epsilon)


class AdamWSpec(AdamSpec):
    """Adam, and beside it w <- w - lr weight_decay w: the decay is no part of the gradient."""

    name: Literal["adamw"] = "adamw"  # type: ignore[assignment]
    weight_decay: float = Field(default=0.01, ge=0, le=1)
    """Decoupled: w <- (1 - lr weight_decay) w before the update by the gradient."""

    @property
    def formula(self) -> Formula:
        return Formula(
            f"w <- (1 - rate weight_decay) w; {super().formula.text}", "Loshchilov and Hutter 2019, algorithm 2"
        )

    def build(self) -> UpdateRule:
        from trainers.optim.optimizers.adam.rule import AdamW

        return AdamW(self.betas, self.epsilon)
