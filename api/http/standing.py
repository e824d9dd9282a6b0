"""Whether the tokens of those who read streams still work: one that is revoked ends its streams."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator

from service import Tokens

LOOK_EVERY_S = 0.5
"""Tokens are revoked in the database, by any process on it; so that is asked, while any stream is open."""

logger = logging.getLogger(__name__)


class Standing:
    """The tokens of all open streams of one server."""

    def __init__(self, tokens: Tokens | None) -> None:
        self.tokens = tokens
        self.shown: dict[str, list[asyncio.Event]] = {}
        """Of each token, what is set for each of its streams once it has ended."""

    @contextlib.contextmanager
    def ended(self, token: str | None) -> Iterator[asyncio.Event]:
        """What is set once a token has ended, for as long as a stream is open."""
        event = asyncio.Event()
        if token is None:
            yield event
            return
        self.shown.setdefault(token, []).append(event)
        try:
            yield event
        finally:
            self.shown[token].remove(event)
            if not self.shown[token]:
                del self.shown[token]

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Look for as long as the body lasts."""
        task = asyncio.create_task(self._watch(), name="tokens")
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _watch(self) -> None:
        while self.tokens is not None:
            await asyncio.sleep(LOOK_EVERY_S)
            if not self.shown:
                continue
            try:
                ended = await asyncio.to_thread(self.tokens.ended, list(self.shown))
            except Exception:  # the database may be back in a moment
                logger.exception("could not ask which tokens have ended")
                continue
            for token in ended:
                for event in self.shown.get(token, ()):
                    event.set()
