"""The section of an optimizer that is named as `module:Class`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, field_validator

from trainers.optim.optimizers.config import Formula, OptimizerSpec

if TYPE_CHECKING:
    from trainers.optim.rule import Rule

OURS = ("params", "lr", "weight_decay")


class TorchSpec(OptimizerSpec):
    """A `torch.optim.Optimizer` by its class: torch's, or one of your own in `code`."""

    whole: ClassVar[bool] = True
    num_states: ClassVar[int | None] = None

    name: Literal["torch"] = "torch"
    """Or the class itself: `optimizer: torch.optim:NAdam`."""
    optimizer: str = Field(pattern=r"^[\w.]+:\w+$", max_length=200)
    """Its class, `module:Class`."""
    kwargs: dict[str, Any] = Field(default={}, max_length=100)
    """Arguments of the class, but for `lr` and `weight_decay`, which stand beside this."""
    lr: float = Field(default=0.001, gt=0, le=1000)
    """Learning rate, at the base batch where `batch.base` gives one."""
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """The class's own; it depends on the class whether it is part of the gradient."""

    @field_validator("kwargs")
    @classmethod
    def _are_not_ours(cls, kwargs: dict[str, Any]) -> dict[str, Any]:
        for name in OURS:
            if name in kwargs:
                raise ValueError(f"{name} is not given here; set optimizer.{name}, or leave it out")
        return kwargs

    @property
    def formula(self) -> Formula:
        options = "".join(f", {name}={value!r}" for name, value in self.kwargs.items())
        return Formula(f"{self.optimizer.partition(':')[2]}(lr=rate{options})", self.optimizer)

    def build(self) -> Rule:
        from trainers.optim.optimizers.torch_optim.rule import TorchRule, torch_class

        return TorchRule(torch_class(self.optimizer), self.kwargs)


def by_class(section: Any) -> Any:
    """`name: module:Class` as the section that it stands for."""
    if isinstance(section, dict) and ":" in str(section.get("name", "")):
        return section | {"name": "torch", "optimizer": section["name"]}
    return section
