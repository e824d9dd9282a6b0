"""The event log on disk: one JSON object a line in `events.jsonl` of the run directory."""

import errno
import logging
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainers.errors import Fenced
from trainers.events import Event, EventType

log = logging.getLogger(__name__)

FILE_NAME = "events.jsonl"
RESERVE_NAME, RESERVE_BYTES = ".events.reserve", 16 * 1024
"""A file that makes room for the last event where the disk is full."""


class EventLog:
    """Appends events; each run has one writer. A half line that a crash has left is removed first."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / FILE_NAME
        self.seq = repair(self.path)
        self.file = self.path.open("ab", buffering=0)
        self.reserve = run_dir / RESERVE_NAME
        with suppress(OSError), self.reserve.open("wb") as reserve:  # the disk may be full already
            os.posix_fallocate(reserve.fileno(), 0, RESERVE_BYTES)

    def begin(self, first: Event) -> None:
        """Write the first event, which readers know already, unless the log has it."""
        if self.seq == 0:
            self._write(first)

    def append(self, event_type: EventType, data: dict[str, Any]) -> Event:
        """Write one event and return it with its number."""
        event = Event(seq=self.seq + 1, time=time.time(), type=event_type, data=data)
        self._write(event)
        return event

    def _write(self, event: Event) -> None:
        line = event.model_dump_json().encode() + b"\n"
        size = os.fstat(self.file.fileno()).st_size  # where the write begins; after a failed one `tell` is beyond it
        try:
            if self.file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:  # half a line would spoil the next one
            self.file.truncate(size)
            raise
        self.seq = event.seq

    def append_last(self, event_type: EventType, data: dict[str, Any]) -> Event:
        """Write the last event of a run, for which room was kept."""
        self.reserve.unlink(missing_ok=True)
        return self.append(event_type, data)

    def close(self) -> None:
        """Flush to the disk, and close."""
        self.reserve.unlink(missing_ok=True)
        os.fsync(self.file.fileno())
        self.file.close()


def repair(path: Path) -> int:
    """Remove a half-written last line. Returns the number of the last complete event."""
    if not path.exists():
        return 0
    data = path.read_bytes()
    complete = data[: data.rfind(b"\n") + 1]
    if len(complete) < len(data):
        os.truncate(path, len(complete))
    events = (parse(line) for line in reversed(complete.splitlines()))
    return next((event.seq for event in events if event is not None), 0)


def parse(line: bytes) -> Event | None:
    """The event of a line. Of a torn line, where the beginning of one event stands before another, the whole one; None
    where there is no whole event."""
    begin = 0
    while begin >= 0:
        with suppress(ValidationError):
            event = Event.model_validate_json(line[begin:])
            break
        begin = line.find(b'{"seq":', begin + 1)
    else:
        event = None
    if begin:
        log.warning("a failed write has torn a line of an event log: %s", line[:80].decode(errors="replace"))
    return event


class EventLogReader:
    """Reads a log from a position on, again and again as it grows; never a half-written line. What a failed write has
    torn is left out with a warning."""

    def __init__(self, run_dir: Path, after: int = 0) -> None:
        self.path = run_dir / FILE_NAME
        self.after = after
        self.offset = 0

    def read(self) -> Iterator[Event]:
        """All complete events that have come since the last call and have a number above `after`."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self.offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self.offset += len(line)
                event = parse(line)
                if event is not None and event.seq > self.after:
                    self.after = event.seq
                    yield event


class Fence:
    """A token in the run directory: only the process that took it last may write the log."""

    def __init__(self, path: Path, token: str) -> None:
        self.path = path
        self.token = token

    @classmethod
    def take(cls, run_dir: Path) -> "Fence":
        """Become the run's only writer."""
        fence = cls(run_dir / "fence", uuid.uuid4().hex)
        part = fence.path.with_name(f".fence.{fence.token}")
        part.write_text(fence.token)
        part.rename(fence.path)
        return fence

    def check(self) -> None:
        """Raise Fenced if another has taken over."""
        if self.path.read_text() != self.token:
            raise Fenced("another coordinator has taken over this run directory")
