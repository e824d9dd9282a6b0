"""A figure over a run in a handful of values, as a list of jobs shows it."""

from pydantic import BaseModel, Field

MOST = 24
"""Values that are kept: the curve is as wide as a word."""


class Curve(BaseModel):
    """Values at even distances: of more than `MOST`, every second, fourth, eighth ... is kept, from the first."""

    values: list[float] = Field(default_factory=list)
    every: int = 1
    """One of so many is kept."""
    seen: int = 0

    def add(self, value: float) -> None:
        """Take in the next value."""
        if self.seen % self.every == 0:
            self.values.append(value)
        self.seen += 1
        if len(self.values) > MOST:
            self.values, self.every = self.values[::2], 2 * self.every
