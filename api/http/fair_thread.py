"""One thread for what takes long, in which users take turns."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from service import Turns

T = TypeVar("T")

MOST_IN_FLIGHT = 32
"""Pieces of work that one user may have: each holds a body of a quarter of a megabyte."""


class FairThread:
    """Does one piece of work at a time, for one user after the other.

    More threads would not be faster, since Python runs one at a time, and each of them delays the event loop.
    """

    def __init__(self, name: str) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self.turns = Turns(MOST_IN_FLIGHT, f"{name} of yours are being read")

    def close(self) -> None:
        """Begin nothing more."""
        self.thread.shutdown(wait=False, cancel_futures=True)

    async def run(self, turn: asyncio.Lock, work: Callable[[], T]) -> T:
        """What the work returns, once it has been done in this turn, of which the user has a place."""
        async with turn:
            return await asyncio.get_running_loop().run_in_executor(self.thread, work)
