"""Who has the newest version when a generation has ended, and where the next one begins."""

from collections.abc import Sequence
from typing import Protocol, TypeVar


class Progress(Protocol):
    """How far a version has come."""

    @property
    def epoch(self) -> int: ...
    @property
    def step(self) -> int: ...


class VersionReport(Protocol):
    """How a generation ended for one worker."""

    @property
    def position(self) -> Progress: ...
    @property
    def has_version(self) -> bool: ...


Report = TypeVar("Report", bound=VersionReport)


def latest_of(ended: Sequence[Report]) -> Report | None:
    """The report of the worker with the newest version; None where no worker has one.

    A step counts as made when one worker has its complete result, even if the others missed the end of it.
    """
    held = [report for report in ended if report.has_version]
    return max(held, key=lambda report: (report.position.epoch, report.position.step), default=None)
