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
COUNT_EVERY = 10
"""Readings between two counts of the processes that draw, which read all of /proc."""


@dataclass
class Watch:
    """Another user, who reads the first page of the list again and again."""

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
        connection, task = Connection(*self.address), asyncio.create_task(load)
        due = time.perf_counter()
        while not task.done():
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            answer = await connection.ask("GET", "/v1/jobs?page_size=50", due_s=due)
            assert answer.status == 200, answer.body
            self.seconds.append(answer.seconds)
            self.resident_bytes = max(self.resident_bytes, proc.resident_bytes(self.pid))
            if len(self.seconds) % COUNT_EVERY == 0:
                self.drawing = max(self.drawing, len(drawing(self.pid)))
            due += EVERY_S
        connection.close()
        await task


def drawing(pid: int) -> list[int]:
    """The processes of a service that draw figures."""
    return [child for child in proc.descendants(pid) if "service.sweeps.draw" in proc.title(child)]
