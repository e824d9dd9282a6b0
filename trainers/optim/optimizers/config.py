"""The base class of the optimizers' sections. Imports no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import Field

from trainers.section import Section

if TYPE_CHECKING:
    from trainers.optim.rule import UpdateRule

Exempt = Literal["batch_norm", "biases"]


class Formula(NamedTuple):
    """An update rule written out, and where it comes from."""

    text: str
    source: str
    """Paper and section."""


class OptimizerSpec(Section, ABC):
    """The fields that all update rules share."""

    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """Coefficient of the L2 term, which is part of the loss: g <- g + weight_decay w, once after the reduction."""

    no_decay: tuple[Exempt, ...] = ("batch_norm",)
    """Parameters without weight decay: gamma and beta of batch normalisation (paper 4, section 5.1), and all biases on
    request. An empty list: none."""

    @property
    @abstractmethod
    def formula(self) -> Formula:
        """What one update computes."""

    @abstractmethod
    def build(self) -> UpdateRule:
        """The update rule. It needs torch and is imported only here, because a spec is read where there is no torch."""
