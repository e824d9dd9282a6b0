"""The section of rmsprop in a spec."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from trainers.optim.optimizers.config import Formula, OptimizerSpec

if TYPE_CHECKING:
    from trainers.optim.rule import UpdateRule


class RmspropSpec(OptimizerSpec):
    """s <- decay s + (1 - decay) g^2, w <- w - lr g / (sqrt(s) + epsilon), PyTorch's form; or TensorFlow's."""

    num_states: ClassVar[int | None] = 1

    name: Literal["rmsprop"] = "rmsprop"
    lr: float = Field(default=0.001, gt=0, le=1000)
    """Learning rate, at the base batch where `batch.base` gives one."""
    decay: float = Field(default=0.99, ge=0, lt=1)
    """Share of the mean square that is kept."""
    epsilon: float = Field(default=1e-8, gt=0, le=10)
    """Added to the root, in TensorFlow's form inside it."""
    form: Literal["pytorch", "tensorflow"] = "pytorch"
    """`tensorflow`: w <- w - lr g / sqrt(s + epsilon) with s = 1 at the start, as paper 3 trained (section IV)."""

    @property
    def formula(self) -> Formula:
        if self.form == "pytorch":
            return Formula("w <- w - rate g / (sqrt(s) + epsilon)", "PyTorch's form")
        return Formula("w <- w - rate g / sqrt(s + epsilon), s = 1 at the start", "paper 3, section IV")

    def build(self) -> UpdateRule:
        from trainers.optim.optimizers.rmsprop.rule import Rmsprop, TensorFlowRmsprop

        return (TensorFlowRmsprop if self.form == "tensorflow" else Rmsprop)(self.decay, self.epsilon)
