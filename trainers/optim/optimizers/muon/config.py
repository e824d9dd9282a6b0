"""The section of muon in a spec."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from trainers.optim.optimizers.config import Formula, OptimizerSpec
from trainers.optim.optimizers.groups import Share

if TYPE_CHECKING:
    from trainers.optim.rule import Rule


class MuonSpec(OptimizerSpec):
    """w <- (1 - lr weight_decay) w - lr sqrt(max(1, rows / columns)) O(g + momentum m) on hidden matrices, where O
    orthogonalises; AdamW on embeddings, the output layer and whatever is no matrix."""

    whole: ClassVar[bool] = True
    num_states: ClassVar[int | None] = 3

    name: Literal["muon"] = "muon"
    lr: float = Field(default=0.02, gt=0, le=1000)
    """Learning rate of the matrices, at the base batch where `batch.base` gives one."""
    momentum: float = Field(default=0.95, ge=0, lt=1)
    """Share of the mean gradient that is kept."""
    nesterov: bool = True
    """Whether the gradient counts again beside the mean gradient."""
    newton_schulz: int = Field(default=5, ge=1, le=100)
    """Iterations that orthogonalise."""
    adamw_lr: float = Field(default=0.0003, gt=0, le=1000)
    """Learning rate of AdamW, which scaling, warm-up and schedule change by the same factors."""
    betas: tuple[Share, Share] = (0.9, 0.95)
    """AdamW's shares of the mean gradient and of the mean square that are kept."""
    epsilon: float = Field(default=1e-10, gt=0, le=10)
    """AdamW's, added to the root."""
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """Decoupled, each part at its own rate."""

    @property
    def formula(self) -> Formula:
        direction = "(1 - m) g + m u" if self.nesterov else "u"
        return Formula(
            f"u <- m u + (1 - m) g, w <- (1 - rate weight_decay) w - rate sqrt(max(1, rows / columns)) O({direction}), "
            "O by Newton-Schulz; adamw for embeddings, the output layer and vectors",
            "Jordan et al. 2024",
        )

    def build(self) -> Rule:
        from trainers.optim.optimizers.adam.rule import AdamW
        from trainers.optim.optimizers.muon.rule import Muon

        others = AdamW(self.betas, self.epsilon)
        return Muon(self.momentum, self.nesterov, self.newton_schulz, others, self.adamw_lr / self.lr)
