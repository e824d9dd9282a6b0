"""The options of the rules for late gradients. Imports no torch."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainers.section import Section

if TYPE_CHECKING:
    from trainers.optim.late.rule import LateRule

MEMORY = 0.95
"""Share of the mean squared step that `gap_aware` keeps at an update."""

PRINTED = {True: 2.0, False: 0.04}
"""Lambda_0 of the source on CIFAR-10, by whether it is adaptive."""


class LateSpec(Section):
    """Base class of the options of a rule."""

    name: ClassVar[str]
    """Of the server rule."""
    source: ClassVar[str]
    """Paper and section."""

    @property
    def num_states(self) -> int:
        """Vectors that the shards keep for it beside those of the optimizer."""
        return 0

    @property
    @abstractmethod
    def formula(self) -> str:
        """What it makes of a gradient, for `explain`."""

    @abstractmethod
    def build(self) -> LateRule:
        """What computes it."""


class Compensation(LateSpec):
    """Delay compensation: the first order of a Taylor series takes a gradient from the parameters w' that were fetched
    to the newest ones w, with lambda g g for the Hessian's diagonal (Zheng et al. 2017)."""

    adaptive: bool = True
    """Whether lambda is lambda_0 / sqrt(mean square + 1e-7), with a moving average of g g: DC-ASGD-a of the source.
    Otherwise it is lambda_0 throughout: DC-ASGD-c."""

    lambda_0: float | None = Field(default=None, ge=0, le=1e6)
    """At 0 the rule is plain. Left out, it is that of the source on CIFAR-10: 2 if adaptive, else 0.04."""

    decay: float = Field(default=0.95, ge=0, lt=1)
    """Share of the mean square that is kept at an update, if adaptive."""

    name: ClassVar[str] = "delay_compensated"
    source: ClassVar[str] = "Zheng et al. 2017, algorithm 2"

    @property
    def num_states(self) -> int:
        return int(self.adaptive)

    @property
    def strength(self) -> float:
        """Lambda_0 as it is taken."""
        return PRINTED[self.adaptive] if self.lambda_0 is None else self.lambda_0

    @property
    def formula(self) -> str:
        step = "g <- g + lambda g g (w - w'), w' as fetched"
        if not self.adaptive:
            return f"{step}; lambda = {self.strength:g}"
        mean = f"s <- {self.decay:g} s + {1 - self.decay:g} g g"
        return f"{step}; {mean}; lambda = {self.strength:g} / sqrt(s + 1e-7)"

    def build(self) -> LateRule:
        # Imported here, because a spec is read in processes without torch.
        from trainers.optim.late.compensation import AdaptiveCompensation, ConstantCompensation

        return AdaptiveCompensation(self.strength, self.decay) if self.adaptive else ConstantCompensation(self.strength)


class GapAware(LateSpec):
    """A gradient is divided by how far each parameter has moved since it was fetched, counted in steps of that
    parameter (Barkai et al. 2020). It has no options."""

    name: ClassVar[str] = "gap_aware"
    source: ClassVar[str] = "Barkai et al. 2020"

    @property
    def num_states(self) -> int:
        return 1

    @property
    def formula(self) -> str:
        mean = f"s <- {MEMORY:g} s + {1 - MEMORY:g} step step"
        return f"g <- g / (1 + |w - w'| / C), w' as fetched; C = sqrt(s) + 1e-12; {mean}"

    def build(self) -> LateRule:
        # Imported here, because a spec is read in processes without torch.
        from trainers.optim.late.gap import GapPenalty

        return GapPenalty(MEMORY)
