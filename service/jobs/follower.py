"""Follows the log of one running job: reports its states, and notices when its coordinator is lost."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from service.jobs.live_log import LiveLog
from service.jobs.runs import RunHandle
from service.status import Status

ALIVE_EVERY = 20  # silent polls between two questions whether the coordinator is alive
DEAD_TIMES = 2  # negative answers in a row after which it counts as dead: a busy machine can be silent once
RETRY_S = 1.0

logger = logging.getLogger(__name__)


class Follower:
    """Follows one run until it writes no more."""

    def __init__(
        self,
        log: LiveLog,
        handle: RunHandle,
        on_state: Callable[[Status], Awaitable[bool]],
        on_lost: Callable[[], Awaitable[None]],
        poll_s: float,
    ) -> None:
        """on_state: Called with each state in the log; returns whether the run goes on writing after it."""
        self.log = log
        self.handle = handle
        self.on_state = on_state
        self.on_lost = on_lost
        self.poll_s = poll_s
        self.goes_on = True

    async def run(self) -> None:
        """Read until the run has written its last state. If it dies without one, call `on_lost` once."""
        silent = dead = 0
        while self.goes_on:
            if await self._read():
                silent = dead = 0
                continue
            silent += 1
            if silent % ALIVE_EVERY == 0:
                dead = 0 if await self._alive() else dead + 1
                # What it wrote before it died is read first: it may have ended well and then gone.
                if dead >= DEAD_TIMES and not await self._read():
                    await self._retry(self.on_lost)
                    return
            await asyncio.sleep(self.poll_s)

    async def _read(self) -> bool:
        try:
            events = await self.log.read()
        except OSError:  # the disk may be back in a moment, and only what is read counts
            name = self.log.run_dir.name
            logger.exception("could not read the log of %s", name, extra={"job": name})
            await asyncio.sleep(RETRY_S)
            return False
        for event in events:
            if event.type in ("log", "state", "warning") and "actor" not in event.data:  # not what users print
                shown: dict[str, Any] = {"job": self.log.run_dir.name}
                shown |= {name: event.data[name] for name in ("level", "state", "reason") if name in event.data}
                logger.info("%s", event.data.get("message", ""), extra=shown)
            if event.type == "state":
                status = Status.of_event(event)
                await self._retry(lambda status=status: self._report(status))  # type: ignore[misc]
        return bool(events)

    async def _report(self, status: Status) -> None:
        self.goes_on = await self.on_state(status)

    async def _retry(self, call: Callable[[], Awaitable[None]]) -> None:
        """Call until it succeeds. The log is read once, so a database that is busy for a moment must lose no state."""
        while True:
            try:
                await call()
            except Exception:
                name = self.log.run_dir.name
                logger.exception("could not record the state of %s", name, extra={"job": name})
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def _alive(self) -> bool:
        try:
            return await asyncio.to_thread(self.handle.is_alive)
        except Exception:  # an unreachable cluster is no dead coordinator; only a clear no counts
            name = self.log.run_dir.name
            logger.exception("could not ask whether the coordinator of %s is alive", name, extra={"job": name})
            return True
