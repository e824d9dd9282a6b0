"""The first part of a run at a lower rate."""

import math
from typing import Any, Literal

from pydantic import Field, model_validator

from trainers.optim.scaling import BatchScaling
from trainers.optim.schedules.base import Schedule
from trainers.section import Section

LENGTHS = ("epochs", "steps", "share")


class WarmupSpec(Section):
    """The first part of a run at a lower rate. Its length is given by one of `epochs`, `steps` and `share`."""

    name: Literal["none", "constant", "gradual", "linear"] = "none"
    """`constant`: the base rate `optimizer.lr` throughout, then a jump; `gradual`: from the base rate by a constant
    increment an iteration to the scaled one. Both do nothing where scaling does not raise the rate (paper 4, section
    2.2). `linear`: from nothing by a constant increment an iteration to the rate, whether it is scaled or not, as
    `warmup_steps` of `transformers`."""

    epochs: float = Field(default=5, gt=0, le=1_000_000)
    """How long, in epochs. The schedule counts its epochs from the start of the run all the same."""

    steps: int | None = Field(default=None, ge=1, le=10**12)
    """How long, in updates."""

    share: float | None = Field(default=None, gt=0, lt=1)
    """How long, as a part of the run."""

    @model_validator(mode="before")
    @classmethod
    def _one_length(cls, given: Any) -> Any:
        named = [name for name in LENGTHS if isinstance(given, dict) and given.get(name) is not None]
        if named[1:] and not (named[0] == "epochs" and given["epochs"] == cls.model_fields["epochs"].default):
            raise ValueError(f"the warm-up's length is given twice, by {' and '.join(named)}; leave one out")
        return given

    def examples(self, epoch: int, total: int, update: int) -> float:
        """How many examples it takes; epoch, total, update: those of an epoch, of the run and of an update."""
        if self.share is not None:
            return self.share * total
        return self.epochs * epoch if self.steps is None else float(self.steps * update)

    @property
    def length(self) -> str:
        """For people."""
        if self.share is not None:
            return f"{self.share:.1%} of the run"
        return f"{self.epochs:g} epochs" if self.steps is None else f"{self.steps:,} updates"


def warms_up(warmup: WarmupSpec, scaling: BatchScaling) -> bool:
    """Whether there is a warm-up: to a scaled rate only if that is above the base rate (paper 4, section 5.3)."""
    return warmup.name == "linear" or (warmup.name != "none" and scaling.rate_factor > 1)


def warmed_up(warmup: WarmupSpec, end: float, after: Schedule, base: float) -> Schedule:
    """The schedule `after` with a warm-up of `end` examples from the rate `base`; all but `constant` end at the rate
    that `after` has at that point."""
    if warmup.name == "constant":
        return lambda seen: base if seen < end else after(seen)
    first = 0.0 if warmup.name == "linear" else base
    rise = after(math.ceil(end)) - first
    return lambda seen: first + rise * (seen / end) if seen < end else after(seen)
