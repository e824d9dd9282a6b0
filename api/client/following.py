"""Where a reader of an event log is."""

from __future__ import annotations

from dataclasses import dataclass

import service


@dataclass
class Following:
    """Where a reader of an event log is, whatever its connection does: which events are new, and when to give up."""

    after: int
    patience_s: float
    seen_s: float | None = None
    ended: bool = False

    @property
    def headers(self) -> dict[str, str]:
        """For the next connection."""
        return {"Last-Event-ID": str(self.after)}

    def take(self, data: str, now_s: float) -> service.Event | None:
        """The event in a message of the stream, if it is one that was not seen before."""
        event = service.Event.model_validate_json(data)
        self.seen_s = now_s
        self.ended = event.is_terminal  # the last one: the log of an extended sweep goes on after an end
        if event.seq <= self.after:
            return None
        self.after = event.seq
        return event

    def lost(self, now_s: float) -> bool:
        """The connection broke: whether it is time to give up, as it is at once before anything was seen."""
        self.ended = False
        return self.seen_s is None or now_s - self.seen_s > self.patience_s
