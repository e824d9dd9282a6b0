"""Which lines of a job's log somebody wants to see."""

from dataclasses import dataclass

from service.jobs.progress import log_line
from trainers import Event


@dataclass(frozen=True)
class LogFilter:
    """Of what is said, by whom."""

    worker: int | None = None
    """Only what the code of this worker has printed."""
    grep: str = ""
    """Only lines that contain this, in upper or lower case."""

    def line(self, event: Event) -> str | None:
        """The event as a line, if it is one that is wanted."""
        if self.worker is not None and event.data.get("actor") != f"worker/{self.worker}":
            return None
        line = log_line(event)
        return line if line is not None and self.grep.lower() in line.lower() else None
