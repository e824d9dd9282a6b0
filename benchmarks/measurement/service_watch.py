"""What others see of a service while somebody loads it: how long the list of jobs takes, and how large it gets."""

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from benchmarks.measurement import proc
from benchmarks.measurement.http_load import Connection

EVERY_S = 0.05
"""Between two readings of the list."""
CONNECTIONS = 8
"""One late answer does not make the next ones late."""
COUNT_EVERY = 10
"""Readings between two counts of the processes that draw, which read all of /proc."""


@dataclass
class Watch:
    """Other users, who read the first page of the list again and again."""

    pid: int
    address: tuple[str, int]
    seconds: list[float] = field(default_factory=list)
    """Of each answer, from when it was to be asked for."""
    resident_bytes: int = 0
    """The most."""
    drawing: int = 0
    """The most processes that drew at once."""

    async def during(self, load: Coroutine[Any, Any, None]) -> None:
        """Watch until the load is over."""
        task, readings = asyncio.create_task(load), set[asyncio.Task[None]]()
        free: asyncio.Queue[Connection] = asyncio.Queue()
        for _ in range(CONNECTIONS):
            free.put_nowait(Connection(*self.address))
        due = time.perf_counter()
        while not task.done():
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            readings.add(asyncio.create_task(self._read(free, due)))
            self.resident_bytes = max(self.resident_bytes, proc.resident_bytes(self.pid))
            if len(readings) % COUNT_EVERY == 0:
                self.drawing = max(self.drawing, len(await asyncio.to_thread(drawing, self.pid)))
            due += EVERY_S
        await asyncio.gather(task, *readings)
        while not free.empty():
            free.get_nowait().close()

    async def _read(self, free: "asyncio.Queue[Connection]", due: float) -> None:
        connection = await free.get()
        answer = await connection.ask("GET", "/v1/jobs?page_size=50", due_s=due)
        assert answer.status == 200, answer.body
        self.seconds.append(answer.seconds)
        free.put_nowait(connection)


def drawing(pid: int) -> list[int]:
    """The processes of a service that draw figures."""
    return [child for child in proc.descendants(pid) if "service.sweeps.reporting.draw" in proc.title(child)]
