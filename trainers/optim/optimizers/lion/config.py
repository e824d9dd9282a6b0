"""The section of lion in a spec."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from trainers.optim.optimizers.config import Formula, OptimizerSpec
from trainers.optim.optimizers.groups import Share

if TYPE_CHECKING:
    from trainers.optim.rule import UpdateRule


class LionSpec(OptimizerSpec):
    """w <- (1 - lr weight_decay) w - lr sign(b1 m + (1 - b1) g), m <- b2 m + (1 - b2) g."""

    num_states: ClassVar[int | None] = 1

    name: Literal["lion"] = "lion"
    lr: float = Field(default=0.0001, gt=0, le=1000)
    """Learning rate, at the base batch where `batch.base` gives one; a third to a tenth of what AdamW takes."""
    betas: tuple[Share, Share] = (0.9, 0.99)
    """Share of the mean gradient in the direction of an update, and of what is kept of it."""
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """Decoupled, as AdamW's; three to ten times what AdamW takes."""

    @property
    def formula(self) -> Formula:
        return Formula(
            "w <- (1 - rate weight_decay) w - rate sign(b1 m + (1 - b1) g), m <- b2 m + (1 - b2) g",
            "Chen et al. 2023, algorithm 2",
        )

    def build(self) -> UpdateRule:
        from trainers.optim.optimizers.lion.rule import Lion

        return Lion(self.betas)
