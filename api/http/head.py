"""HEAD, wherever GET is: the same headers, and no body."""

import asyncio
import contextlib

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Head:
    """ASGI middleware around everything that answers."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have GET answer, as far as its headers: a stream would not end, and a file need not be read."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        is_answered = asyncio.Event()

        async def without_body(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b""})
                is_answered.set()

        answering = asyncio.ensure_future(self.app({**scope, "method": "GET"}, receive, without_body))
        waiting = asyncio.ensure_future(is_answered.wait())
        try:
            await asyncio.wait({answering, waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            answering.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await answering
