"""The section `clip` of a spec: how large a gradient may be. Imports no torch."""

from typing import Self

from pydantic import Field, model_validator

from trainers.section import Section


class ClipSpec(Section):
    """Limits the gradient of each update, before weight decay is added and the optimizer sees it; either its norm or
    its elements."""

    norm: float | None = Field(default=None, gt=0, le=1e9)
    """The largest L2 norm of the gradient of all trained parameters together: a longer one is scaled down to it
    (Pascanu et al. 2013)."""

    value: float | None = Field(default=None, gt=0, le=1e9)
    """The largest absolute value of an element: a larger one is set to it."""

    @model_validator(mode="after")
    def _is_one_of_the_two(self) -> Self:
        if (self.norm is None) == (self.value is None):
            raise ValueError("give either norm, for the gradient as a whole, or value, for each of its elements")
        return self
