"""The gates of a generation together: its workers are held in front of the next step, and told how to go on."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import ray

from trainers.runtime.crew import CONTROL, Hired


class Gates:
    """Of the workers of one generation, who go on step by step together. No step is interrupted."""

    def __init__(self, generation: int, workers: Sequence[Hired]) -> None:
        self.generation = generation
        self.workers = workers
        self.holding = asyncio.Lock()
        self.stopped = False

    async def stop(self) -> None:
        """Let all go on to the step that the furthest has begun, and no further."""
        async with self.holding:
            self.stopped = True
            with suppress(ray.exceptions.RayActorError):  # one that has died ends the generation by itself
                await self._release(max(await self._hold()), None)

    async def meet(self) -> None:
        """Have the workers make a snapshot together after the step that the furthest has begun, unless they stop."""
        async with self.holding:
            if not self.stopped:
                with suppress(ray.exceptions.RayActorError):
                    await self._release(None, max(await self._hold()))

    async def _hold(self) -> list[int]:
        return list(await asyncio.gather(*[self._ask(worker, "hold") for worker in self.workers]))

    async def _release(self, limit: int | None, meeting: int | None) -> None:
        await asyncio.gather(*[self._ask(worker, "release", limit, meeting) for worker in self.workers])

    async def _ask(self, worker: Hired, method: str, *arguments: Any) -> Any:
        call = getattr(worker.actor, method).options(concurrency_group=CONTROL)
        return await call.remote(self.generation, *arguments)
