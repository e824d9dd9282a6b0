"""One thread for what takes long, in which users take turns."""

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from api.http.problems import ProblemError

T = TypeVar("T")

MOST_WAITING = 32
"""Pieces of work that one user may have: each holds a body of a quarter of a megabyte."""


class FairThread:
    """Does one piece of work at a time. Of each user it has one, so that nobody waits for more than one of each other.

    More threads would not be faster, since Python runs one at a time, and each of them delays the event loop.
    """

    def __init__(self, name: str) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self.turns: dict[str, asyncio.Lock] = {}
        self.waiting: Counter[str] = Counter()

    def close(self) -> None:
        """Begin nothing more."""
        self.thread.shutdown(wait=False, cancel_futures=True)

    async def run(self, user: str, work: Callable[[], T]) -> T:
        """What the work returns, when it has been this user's turn. Raises ProblemError if too much of theirs waits."""
        if self.waiting[user] >= MOST_WAITING:
            raise ProblemError(
                429, f"{MOST_WAITING} specs of yours are being read", remedy="wait for some of the answers"
            )
        self.waiting[user] += 1
        try:
            async with self.turns.setdefault(user, asyncio.Lock()):
                return await asyncio.get_running_loop().run_in_executor(self.thread, work)
        finally:
            self.waiting[user] -= 1
            if not self.waiting[user]:
                del self.waiting[user], self.turns[user]
