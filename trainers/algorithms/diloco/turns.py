"""When the sum of each fragment of the model leaves, and when it comes back. Imports no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Turns:
    """Counts the steps of an epoch from 1. Fragment p leaves for the first time after t_p = (p + 1) H / P of them,
    rounded down, and then every H; so the last one leaves every H steps from the beginning."""

    every: int
    """H: steps from one sum of a fragment to its next."""
    fragments: int
    """P."""
    delay: int
    """Steps, fewer than H, that a sum takes."""

    def first(self, fragment: int) -> int:
        """t_p."""
        return (fragment + 1) * self.every // self.fragments

    def last(self, fragment: int, step: int) -> int | None:
        """After which step of the epoch the fragment left last, this one included; None if it has not."""
        since = step - self.first(fragment)
        return None if since < 0 else step - since % self.every

    def leaves(self, fragment: int, step: int) -> bool:
        """Whether its sum leaves after this step."""
        return self.last(fragment, step) == step

    def arrives(self, fragment: int, step: int) -> bool:
        """Whether its sum is waited for after this step."""
        return self.last(fragment, step - self.delay) == step - self.delay

    def travels(self, fragment: int, step: int) -> bool:
        """Whether its sum is under way after this step."""
        left = self.last(fragment, step)
        return left is not None and step - left < self.delay

    def steps(self, fragment: int, step: int) -> int:
        """Steps since it left last, this one included, but for a sum that leaves after this one."""
        return step - (self.last(fragment, step - 1) or 0)
