"""The event log of a live job, read as it grows for everybody who watches it."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from itertools import islice
from pathlib import Path

from service.jobs.progress import Progress
from service.tracking.tensorboard import EventFile
from trainers import Event, EventLog, EventLogReader

TAIL = 1000  # events in memory for readers who are up to date; those further behind read the file
BATCH = 500


class LiveLog:
    """The event log of one job or sweep while it grows. It parses each event once, for any number of readers."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.reader = EventLogReader(run_dir)
        self.board = EventFile(run_dir)
        self.progress = Progress()
        self.tail: deque[Event] = deque(maxlen=TAIL)
        self.first: Event | None = None
        """The first event, as long as it is in no file: a job that waits has none."""
        self.ended = False
        self.grown = asyncio.Event()

    def begin(self, first: Event) -> None:
        """Take the first event. It is written once there is more to tell, or to be read: most jobs wait, and a log for
        each would cost more than storing it."""
        self.first = first
        self.reader.after = first.seq
        self._add([first])

    async def read(self, write: Callable[[], object] | None = None) -> list[Event]:
        """Read what was written since the last call, at most BATCH events, and wake the readers.

        write: Writes to the log first. It blocks, as reading does, and runs in the same thread.
        """
        try:
            if write is None and self.first is None and self.reader.path.stat().st_size <= self.reader.offset:
                return []
        except FileNotFoundError:
            return []
        events = await asyncio.to_thread(self._take, write)
        self._add(events)
        return events

    def _add(self, events: list[Event]) -> None:
        for event in events:
            self.progress.add(event)
            self.tail.append(event)
        if events:
            self.ended = self.ended or events[-1].is_terminal
            self.wake()

    def _take(self, write: Callable[[], object] | None) -> list[Event]:
        if self.first is not None:
            self.run_dir.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(EventLog(self.run_dir)) as log:
                log.begin(self.first)
            self.first = None
        if write is not None:
            write()
        events = list(islice(self.reader.read(), BATCH))
        self.board.add(events)
        return events

    def end(self) -> None:
        """Mark the log as complete, whatever its last event is."""
        self.ended = True
        self.wake()

    def wake(self) -> None:
        """Wake all readers."""
        self.grown.set()
        self.grown = asyncio.Event()

    def so_far(self, after: int = 0) -> AsyncIterator[list[Event]]:
        """The events up to now with a number above `after`, in batches."""
        return read_batches(self.run_dir, after) if self.first is None else _one_batch(self.first, after)

    async def follow(self, after: int) -> AsyncIterator[list[Event]]:
        """All events with a number above `after`, in batches, until the log ends."""
        while True:
            grown = self.grown
            if self.tail and after + 1 < self.tail[0].seq:
                async for batch in read_batches(self.run_dir, after):
                    yield batch
                    after = batch[-1].seq
                continue
            start = max(0, after + 1 - self.tail[0].seq) if self.tail else 0
            events = list(islice(self.tail, start, None))
            if events:
                yield events
                after = events[-1].seq
            elif self.ended:
                return
            else:
                await grown.wait()


async def read_batches(run_dir: Path, after: int = 0) -> AsyncIterator[list[Event]]:
    """The events that a log holds now above `after`, in batches, read in a thread."""
    reader = EventLogReader(run_dir, after)
    while events := await asyncio.to_thread(lambda: list(islice(reader.read(), BATCH))):
        yield events


async def _one_batch(event: Event, after: int) -> AsyncIterator[list[Event]]:
    if event.seq > after:
        yield [event]
