"""One follower a live job: reads its log as it grows, for everybody who watches, and notices a lost coordinator."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import islice
from pathlib import Path
from typing import Any

from service.progress import Progress
from service.runs import RunHandle
from service.tensorboard import EventFile
from trainers import Event, JournalReader

TAIL = 1000  # events held in memory for those who are up to date; who is further behind reads the file
BATCH = 500
ALIVE_EVERY = 20  # polls between two questions whether the writer lives
DEAD_TIMES = 2  # answers in a row before it counts as dead: a busy machine can be silent once
TELL_AGAIN_S = 1.0

logger = logging.getLogger(__name__)


class LiveLog:
    """The log of one job while it grows. Any number may read it from any number on; each event is parsed once."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.reader = JournalReader(run_dir)
        self.board = EventFile(run_dir)
        self.progress = Progress()
        self.tail: deque[Event] = deque(maxlen=TAIL)
        self.ended = False
        self.grown = asyncio.Event()

    def begin(self, first: Event) -> None:
        """The log has its first event, which was not read from there."""
        self.reader.after = first.seq
        self._add([first])

    async def read(self, write: Callable[[], object] | None = None) -> list[Event]:
        """Take in what was written since the last call, at most BATCH events, and wake whoever waits for it. What
        `write` writes comes first; it blocks, as reading does, and shares a thread with it."""
        try:
            if write is None and self.reader.path.stat().st_size <= self.reader.offset:
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
        if write is not None:
            write()
        events = list(islice(self.reader.read(), BATCH))
        self.board.add(events)
        return events

    def end(self) -> None:
        """Nothing will follow, whatever the last event was."""
        self.ended = True
        self.wake()

    def wake(self) -> None:
        """Let everybody look again."""
        self.grown.set()
        self.grown = asyncio.Event()

    async def follow(self, after: int) -> AsyncIterator[list[Event]]:
        """All events with a number above `after`, in batches, to the end of the log."""
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
    """What a log holds now above `after`, in batches, read in a thread."""
    reader = JournalReader(run_dir, after)
    while events := await asyncio.to_thread(lambda: list(islice(reader.read(), BATCH))):
        yield events


class Follower:
    """Follows one live run to where it writes no more."""

    def __init__(
        self,
        log: LiveLog,
        handle: RunHandle,
        on_state: Callable[[Event], Awaitable[bool]],
        on_lost: Callable[[], Awaitable[None]],
        poll_s: float,
    ) -> None:
        self.log = log
        self.handle = handle
        self.on_state = on_state
        self.on_lost = on_lost
        self.poll_s = poll_s
        self.goes_on = True
        """What `on_state` said last: whether the run writes after this state."""

    async def run(self) -> None:
        """Read on until the run has said its last word; if it is dead without one, say so once."""
        silent = dead = 0
        while self.goes_on:
            if await self._read():
                silent = dead = 0
                continue
            silent += 1
            if silent % ALIVE_EVERY == 0:
                dead = 0 if await self._alive() else dead + 1
                # What it wrote before it died comes first: it may have ended well, then gone.
                if dead >= DEAD_TIMES and not await self._read():
                    await self._insist(self.on_lost)
                    return
            await asyncio.sleep(self.poll_s)

    async def _read(self) -> bool:
        events = await self.log.read()
        for event in events:
            if event.type in ("log", "state"):
                told: dict[str, Any] = {"job": self.log.run_dir.name}
                told |= {name: event.data[name] for name in ("level", "state", "reason") if name in event.data}
                logger.info("%s", event.data.get("message", ""), extra=told)
            if event.type == "state":
                await self._insist(lambda event=event: self._tell(event))  # type: ignore[misc]
        return bool(events)

    async def _tell(self, event: Event) -> None:
        self.goes_on = await self.on_state(event)

    async def _insist(self, tell: Callable[[], Awaitable[None]]) -> None:
        while True:  # the log comes by once, so a database that is busy for a moment must not lose a state
            try:
                await tell()
            except Exception:
                name = self.log.run_dir.name
                logger.exception("could not note the state of %s", name, extra={"job": name})
                await asyncio.sleep(TELL_AGAIN_S)
            else:
                return

    async def _alive(self) -> bool:
        try:
            return await asyncio.to_thread(self.handle.is_alive)
        except Exception:  # an unreachable cluster is no dead coordinator; only a clear no counts
            name = self.log.run_dir.name
            logger.exception("could not ask whether the coordinator of %s lives", name, extra={"job": name})
            return True
