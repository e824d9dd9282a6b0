"""The numbers of a recipe."""

from pydantic import ConfigDict

from trainers.documented import Documented


class Explained(Documented):
    """Base class of the parts of a recipe: frozen, with documented fields."""

    model_config = ConfigDict(frozen=True)


class Quantity(Explained):
    """One number of the recipe."""

    value: float | int | str | None
    formula: str = ""
    source: str = ""
    """Paper and section."""
