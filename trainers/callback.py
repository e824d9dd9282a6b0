"""Callbacks: code of a user's own that follows a run and may ask something of it. Imports no torch and no Ray."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class SeenEvent:
    """An event of the run's log, as a callback sees it. Nothing in it can be changed."""

    seq: int
    """Its number in the log, from 1. Of `on_end` 0: the log gets its last event afterwards."""
    time: float
    """Seconds since 1970, of the coordinator's clock."""
    type: str
    data: Mapping[str, Any]
    """As `trainers/events.py` tells it."""
    replayed: bool = False
    """Whether it was given to a callback in an earlier process, which has died."""


class Callback:
    """Base of a user's callbacks. Each has a process of its own beside the coordinator, which the steps do not wait
    for; what it does not define does nothing."""

    _why_stop: str | None = None
    _wants_evaluation = False

    def on_start(self, event: SeenEvent) -> None:
        """The run trains for the first time. The event is a `state`."""

    def on_step(self, event: SeenEvent) -> None:
        """Workers have reported steps: a `step`, one every `report_every_s`."""

    def on_evaluation(self, event: SeenEvent) -> None:
        """A version is evaluated: an `evaluation`."""

    def on_checkpoint(self, event: SeenEvent) -> None:
        """A checkpoint is written: a `checkpoint`."""

    def on_end(self, event: SeenEvent) -> None:
        """The run is over for good. The data are the last `state`, `reason` and `message`, and its `result`, or None
        where it has none."""

    def ask_to_stop(self, why: str) -> None:
        """Have the run end well, with a checkpoint, at the end of a step: soon, not of the one that was just told."""
        self._why_stop = self._why_stop or why

    def ask_to_evaluate(self) -> None:
        """Have the version after the step under way evaluated."""
        self._wants_evaluation = True

    def asked(self) -> tuple[str | None, bool]:
        """Why it asked to stop, if it did, and whether to evaluate, since the last call."""
        found = self._why_stop, self._wants_evaluation
        self._why_stop, self._wants_evaluation = None, False
        return found


def frozen(value: Any) -> Any:
    """The same value with mappings that are read only, and tuples for lists."""
    if isinstance(value, Mapping):
        return MappingProxyType({key: frozen(item) for key, item in value.items()})
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value
