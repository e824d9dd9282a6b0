"""What the Python code of an actor prints, on its way to the run's log.

`print`, warnings and `logging` of a user's code pass through here. The coordinator takes the lines along with each
heartbeat; nobody waits for it, and what a process prints beyond the bounds is only counted. The lines also go where
Ray would have put them, its files in the session's folder, within the same bounds: a disk is filled by neither.
"""

import io
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

from trainers.elastic.heartbeat import Printed

LINE = 2000
"""Characters after which a line is cut into several."""
BURST_LINES, LINES_PER_S = 500, 2.0
BURST_BYTES, BYTES_PER_S = 64_000, 200.0
"""What is kept of much at once, and how fast it may come in the long run: 17 MB a day."""
MOST_BYTES = 20_000_000
"""Of one process, in all."""


class Printing:
    """The lines of one process that nobody has taken yet."""

    def __init__(self, actor: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.actor = actor
        self.clock = clock
        self.lock = threading.RLock()  # a signal's handler may print in the middle of a print
        self.lines: list[tuple[float, str, str]] = []
        self.left_out = 0
        self.lines_left, self.bytes_left, self.total_left = float(BURST_LINES), float(BURST_BYTES), float(MOST_BYTES)
        self.since_s = clock()

    def capture(self) -> None:
        """Take what this process prints from now on."""
        before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = Captured("stdout", sys.stdout, self), Captured("stderr", sys.stderr, self)
        for handler in logging.getLogger().handlers:  # those that Ray has made hold the stream itself
            if isinstance(handler, logging.StreamHandler) and handler.stream in before:
                handler.setStream(sys.stdout if handler.stream is before[0] else sys.stderr)

    def add(self, stream: str, line: str) -> bool:
        """Keep a line, if it is within the bounds. Returns whether it is."""
        size = len(line.encode(errors="replace")) + 1
        with self.lock:
            now_s = self.clock()
            passed_s, self.since_s = now_s - self.since_s, now_s
            self.lines_left = min(BURST_LINES, self.lines_left + passed_s * LINES_PER_S)
            self.bytes_left = min(BURST_BYTES, self.bytes_left + passed_s * BYTES_PER_S)
            if self.lines_left < 1 or size > min(self.bytes_left, self.total_left):
                self.left_out += 1
                return False
            self.lines_left, self.bytes_left = self.lines_left - 1, self.bytes_left - size
            self.total_left -= size
            self.lines.append((time.time(), stream, line))
            return True

    def take(self) -> Printed | None:
        """The lines since the last call; None where there were none."""
        with self.lock:
            if not self.lines and not self.left_out:
                return None
            found = Printed(self.actor, tuple(self.lines), self.left_out)
            self.lines, self.left_out = [], 0
            return found


class Captured(io.TextIOBase):
    """In place of `sys.stdout` or `sys.stderr`."""

    def __init__(self, name: str, original: TextIO, printing: Printing) -> None:
        self.stream_name = name
        self.original = original
        self.printing = printing
        self.begun = ""  # of a line that has not ended

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Of what lies below."""
        return self.original.encoding

    def writable(self) -> bool:
        """It is for nothing else."""
        return True

    def fileno(self) -> int:
        """Of what lies below, for processes that are started with it."""
        return self.original.fileno()

    def write(self, text: str) -> int:
        """Take a part of a line, or several lines. A bar that is drawn anew with a carriage return is its last state.

        Of a text without end no more is held than of a line.
        """
        with self.printing.lock:
            *whole, self.begun = (self.begun + text).split("\n")
            for line in whole:
                self._take(line)
            if len(self.begun) > LINE:
                rest = len(self.begun) % LINE
                self._take(self.begun[: len(self.begun) - rest])
                self.begun = self.begun[len(self.begun) - rest :]
        return len(text)

    def flush(self) -> None:
        """What lies below; a line that has not ended is still to come."""
        self.original.flush()

    def _take(self, line: str) -> None:
        line = line.rstrip("\r").rpartition("\r")[2]
        for start in range(0, len(line) or 1, LINE):
            part = line[start : start + LINE]
            if part.strip() and self.printing.add(self.stream_name, part.replace("\0", "")):
                self.original.write(part + "\n")
