"""The numbers of a recipe."""

from pydantic import BaseModel, ConfigDict


class Explained(BaseModel):
    """Base class of the parts of a recipe: frozen, with documented fields."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class Quantity(Explained):
    """One number of the recipe."""

    value: float | int | str | None
    formula: str = ""
    source: str = ""
    """Paper and section."""
