"""The base class of the optimizers' sections. Imports no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from trainers.optim.optimizers.groups import GroupSpec
from trainers.section import Section

if TYPE_CHECKING:
    from trainers.optim.rule import Rule

Exempt = Literal["batch_norm", "norms", "biases"]


class Formula(NamedTuple):
    """An update rule written out, and where it comes from."""

    text: str
    source: str
    """Paper and section."""


class OptimizerSpec(Section, ABC):
    """The fields that all update rules share."""

    whole: ClassVar[bool] = False
    """Whether it updates parameters as wholes, so that no cut may go through one (`ParameterRule`)."""

    num_states: ClassVar[int | None] = 0
    """Vectors of the parameters' size that it keeps beside them; None: that is known when it is built."""

    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """Coefficient of the L2 term, which is part of the loss: g <- g + weight_decay w, once after the reduction."""

    no_decay: tuple[Exempt, ...] = ("batch_norm",)
    """Parameters without weight decay: gamma and beta of batch normalisation (paper 4, section 5.1), and on request
    those of all normalisations (`norms`) and all biases. An empty list: none."""

    groups: tuple[GroupSpec, ...] = Field(default=(), max_length=100)
    """Parameters with hyperparameters of their own, by the patterns of their names."""

    @model_validator(mode="after")
    def _groups_set_what_there_is(self) -> Self:
        for index, group in enumerate(self.groups):
            if unknown := sorted(set(group.options) - set(type(self).model_fields)):
                name = type(self).model_fields["name"].default
                raise ValueError(f"groups.{index}: {name} has no {unknown[0]}; leave it out")
            self.of_group(group)
        return self

    def of_group(self, group: GroupSpec) -> Self:
        """The optimizer of one of the groups."""
        return type(self).model_validate(self.model_dump(exclude={"groups"}) | group.options)

    @property
    @abstractmethod
    def formula(self) -> Formula:
        """What one update computes."""

    @abstractmethod
    def build(self) -> Rule:
        """The update rule. It needs torch and is imported only here, because a spec is read where there is no torch."""
