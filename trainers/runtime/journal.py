"""The event log on disk: one JSON object a line in `events.jsonl` of the run directory."""

import errno
import json
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainers.errors import Fenced
from trainers.events import Event, EventType

FILE_NAME = "events.jsonl"


class Journal:
    """Appends events; there is one writer a run. A line that a crash cut in half is cut off before the next."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / FILE_NAME
        self.seq = repair(self.path)
        self.file = self.path.open("ab", buffering=0)

    @classmethod
    def begin(cls, run_dir: Path, event_type: EventType, data: dict[str, Any]) -> Event:
        """Write the first event of a run that has none, in as few calls of the system as it takes, because runs come in
        crowds. Whoever calls it answers for its being durable."""
        event = Event(seq=1, time=time.time(), type=event_type, data=data)
        line = event.model_dump_json().encode() + b"\n"
        folder = str(run_dir)
        try:
            os.mkdir(folder)
        except FileNotFoundError:
            os.makedirs(folder, exist_ok=True)
        except FileExistsError:
            pass  # it begins with a checkpoint of another
        file = os.open(f"{folder}/{FILE_NAME}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            if os.write(file, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(file)
        return event

    def append(self, event_type: EventType, data: dict[str, Any]) -> Event:
        """Write one event and return it with its number."""
        event = Event(seq=self.seq + 1, time=time.time(), type=event_type, data=data)
        line = event.model_dump_json().encode() + b"\n"
        begin = self.file.tell()
        try:
            if self.file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:  # half a line would spoil the next one
            self.file.truncate(begin)
            raise
        self.seq = event.seq
        return event

    def close(self) -> None:
        """Flush to the disk, and close."""
        os.fsync(self.file.fileno())
        self.file.close()


def repair(path: Path) -> int:
    """Cut off a half-written last line. Returns the number of the last whole event."""
    if not path.exists():
        return 0
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        os.truncate(path, len(whole))
    lines = whole.splitlines()
    return int(json.loads(lines[-1])["seq"]) if lines else 0


class JournalReader:
    """Reads a log from a position on, again and again as it grows; never a half-written line."""

    def __init__(self, run_dir: Path, after: int = 0) -> None:
        self.path = run_dir / FILE_NAME
        self.after = after
        self.offset = 0

    def read(self) -> Iterator[Event]:
        """All whole events that have come since the last call and have a number above `after`."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self.offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self.offset += len(line)
                event = Event.model_validate_json(line)
                if event.seq > self.after:
                    self.after = event.seq
                    yield event


class Fence:
    """A token in the run directory: whoever took it last may write, nobody else."""

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
