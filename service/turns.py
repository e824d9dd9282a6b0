"""Users take turns at what takes long, and each may have only so much of it in flight."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from service.errors import TooManyInFlight


class Turns:
    """Of each user one piece of work is under way, so that nobody waits for more than one of each other.

    All calls come from one event loop.
    """

    def __init__(self, most: int, what: str) -> None:
        self.most = most
        """Pieces of work that one user may have, under way and waiting."""
        self.what = what
        """What they are, in the plural, for the user who has too many."""
        self.locks: dict[str, asyncio.Lock] = {}
        self.in_flight: Counter[str] = Counter()

    @asynccontextmanager
    async def place(self, user: str) -> AsyncIterator[asyncio.Lock]:
        """Count one more piece of work of this user's. Raises TooManyInFlight.

        Yields: The user's turn, to be held while the work is done.
        """
        if self.in_flight[user] >= self.most:
            raise TooManyInFlight(f"{self.most} {self.what}; wait for some of the answers")
        self.in_flight[user] += 1
        try:
            yield self.locks.setdefault(user, asyncio.Lock())
        finally:
            self.in_flight[user] -= 1
            if not self.in_flight[user]:
                del self.in_flight[user], self.locks[user]
