"""One axis of a sweep: listed values, or a range that values are drawn from; always, or only beside others."""

import math
import random
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, JsonValue, Tag, model_validator

from trainers import Documented

Values = tuple[JsonValue, ...]
TAGS = ("listed", "choice", "range")
"""Of the forms of an axis, in pydantic's places of errors."""
DIGITS = 5
"""Of a number that is drawn: as many as anybody reads."""


class Part(Documented):
    """Root of all parts of a sweep's spec: frozen, documented, and strict about names."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


When = dict[
    str, Annotated[Values, BeforeValidator(lambda value: value if isinstance(value, list | tuple) else (value,))]
]


class Choice(Part):
    """Listed values of an axis that not every trial has."""

    values: Values
    when: When = Field(min_length=1, examples=[{"optimizer": ["momentum"]}])
    """Another axis -> its values beside which a trial has this one; of several axes, all must hold."""


class Range(Part):
    """Numbers from `low` to `high`, both of which may be drawn."""

    low: float = Field(allow_inf_nan=False)
    high: float = Field(allow_inf_nan=False)
    log: bool = False
    """Drawn uniformly in the logarithm."""
    integer: bool = False
    """Whole numbers only."""
    step: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Only `low`, `low` + `step` and so on."""
    when: When = {}
    """Another axis -> its values beside which a trial has this one; none: always."""

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"high: a range ends above where it begins, which is {self.low:g}")
        if self.log and self.low <= 0:
            raise ValueError("low: above 0, where it is drawn in the logarithm")
        if self.log and self.step is not None:
            raise ValueError("step: leave it out with `log`, whose steps grow")
        if self.integer and not all(one is None or one == int(one) for one in (self.low, self.high, self.step)):
            raise ValueError("integer: then low, high and step are whole numbers")
        if self.step is not None and not math.isclose(round(self._steps), self._steps, rel_tol=1e-9):
            raise ValueError(f"step: high is {self._steps:g} steps above low; make that a whole number")
        return self

    @property
    def _steps(self) -> float:
        return (self.high - self.low) / (self.step or 1.0)

    def draw(self, dice: random.Random) -> int | float:
        """One of its numbers."""
        if self.log:
            low, high = (self.low - 0.5, self.high + 0.5) if self.integer else (self.low, self.high)
            return self.rounded(math.exp(dice.uniform(math.log(low), math.log(high))))
        if self.integer or self.step is not None:
            return self.rounded(self.low + dice.randint(0, round(self._steps)) * (self.step or 1.0))
        return self.rounded(dice.uniform(self.low, self.high))

    def rounded(self, value: float) -> int | float:
        """As it stands in a trial's spec."""
        if self.integer:
            step = int(self.step or 1)
            return int(self.low) + round((min(max(value, self.low), self.high) - self.low) / step) * step
        if self.step is not None:
            return float(f"{self.low + round((value - self.low) / self.step) * self.step:.12g}")
        return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)


def _form(value: Any) -> str:
    if isinstance(value, Choice) or (isinstance(value, dict) and "values" in value):
        return "choice"
    return "range" if isinstance(value, Range | dict) else "listed"


Axis = Annotated[
    Annotated[Values, Tag("listed")] | Annotated[Choice, Tag("choice")] | Annotated[Range, Tag("range")],
    Discriminator(_form),
]
Axes = dict[str, Axis]


def listed(axis: Axis) -> Values:
    """The values that an axis lists; none of a range."""
    if isinstance(axis, Choice):
        return axis.values
    return () if isinstance(axis, Range) else axis


def condition(axis: Axis) -> When:
    """Beside which values of other axes a trial has it; empty: always."""
    return axis.when if isinstance(axis, Choice | Range) else {}


def is_met(axis: Axis, settings: Mapping[str, JsonValue]) -> bool:
    """Whether a trial with these settings has the axis."""
    return all(name in settings and settings[name] in values for name, values in condition(axis).items())
