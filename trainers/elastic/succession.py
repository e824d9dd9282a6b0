"""Who has the newest version when a generation has ended, and where the next one begins."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Report(Protocol):
    """How a generation ended for one worker."""

    @property
    def number(self) -> int: ...
    @property
    def position(self) -> dict[str, Any]: ...
    @property
    def has_version(self) -> bool: ...
    @property
    def states(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Newest:
    """A version in the memory of a worker."""

    number: int
    """The worker's."""
    position: dict[str, Any]
    """A `Position`: the next step is the one after it."""
    states: tuple[str, ...]
    """The names of its vectors beside the parameters."""


def newest_of(ended: Sequence[Report]) -> Newest | None:
    """The newest version that one of the living has; None where none has one.

    A step counts as made when one worker has its result whole, also if the others missed the end of it.
    """
    held = [Newest(e.number, e.position, e.states) for e in ended if e.has_version]
    return max(held, key=lambda n: (n.position["epoch"], n.position["step"]), default=None)
