"""The sections of `data` that vary training images as torchvision's classes of the same names do. Imports no torch."""

from typing import Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from trainers.section import Section


class RandAugmentSpec(Section):
    """Some operations of RandAugment on each training image, one after the other (Cubuk et al. 2020)."""

    ops: int = Field(default=2, ge=1, le=14)
    """How many operations, each drawn from 14."""

    magnitude: int = Field(default=9, ge=0, le=30)
    """How strong each is, out of 30."""


class RandomErasingSpec(Section):
    """Overwrites a box of some training images, after they have been normalised (Zhong et al. 2020)."""

    probability: float = Field(default=0.5, ge=0, le=1)
    """Share of the images that lose a box."""

    scale: tuple[float, float] = (0.02, 0.33)
    """The smallest and the largest box, as a share of the image's area."""

    ratio: tuple[float, float] = (0.3, 3.3)
    """The least and the most height of a box over its width."""

    value: float | Literal["random"] = 0.0
    """What the pixels of a box become, in units of the standard deviation, 0 being the mean; `random`: draws from a
    standard normal distribution."""

    @model_validator(mode="after")
    def _is_two_bounds(self) -> Self:
        if not 0 <= self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"scale is {list(self.scale)}; give two shares from 0 to 1, the smaller one first")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ValueError(f"ratio is {list(self.ratio)}; give two numbers above 0, the smaller one first")
        return self


class MixSpec(Section):
    """Mixes the training images of a virtual worker's minibatch in pairs, and their labels likewise."""

    alpha: float = Field(gt=0, le=1000)
    """Of the distribution Beta(alpha, alpha) from which each minibatch draws what share of an image is its own: near 0
    an image is nearly whole, 1 makes all shares equally likely."""


def _spelled_out(value: Any) -> Any:
    return value if value is None or isinstance(value, dict | BaseModel) else {"alpha": value}


BY_ALPHA = BeforeValidator(_spelled_out, json_schema_input_type=MixSpec | float | None)
"""Lets alpha stand for the section."""
