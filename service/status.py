"""The status of a job or a sweep: its state, and why it is in it."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from trainers import Event, EventLog, State


@dataclass(frozen=True)
class Status:
    """A state with its reason, one CamelCase word, and its message, a sentence."""

    state: State
    reason: str = ""
    message: str = ""

    @classmethod
    def of_event(cls, event: Event) -> Self:
        """The status that a `state` event reports."""
        return cls(State(event.data["state"]), event.data.get("reason", ""), event.data.get("message", ""))

    @property
    def data(self) -> dict[str, str]:
        """As the data of a `state` event, or the columns of a table."""
        return {"state": self.state.value, "reason": self.reason, "message": self.message}


SUBMITTED = Status(State.QUEUED, "Submitted", "waits for its turn")
"""Of a job that has just come."""


def submission(created: float, by: Mapping[str, Any] | None = None) -> Event:
    """The first event of a job's log: that it was submitted, when (in seconds since 1970), and by whom, as JSON."""
    return Event(seq=1, time=created, type="state", data=SUBMITTED.data | ({} if by is None else {"by": by}))


def append_status(run_dir: Path, status: Status, requests: Sequence[dict[str, Any]] = ()) -> Event:
    """Write a status into a log that no coordinator or driver writes, after what was asked for. It blocks."""
    run_dir.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(EventLog(run_dir)) as journal:
        for request in requests:
            journal.append("request", request)
        return journal.append("state", dict(status.data))
