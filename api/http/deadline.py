"""Connections that do not say within a minute what they want are closed."""

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from api.http.one_write import OneWrite

WITHIN_S = 60.0
"""For a request's headers and body: 4 KB a second, where the body is as large as it may be."""


class PromptRequests(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """Uvicorn's protocol. By itself it waits for the rest of a request for ever."""

    deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Somebody has connected."""
        super().connection_made(OneWrite(transport, self.loop))
        self._await_request()

    def data_received(self, data: bytes) -> None:
        """A part of a request, or several requests."""
        super().data_received(data)
        cycle: Any = self.cycle
        if cycle is not None and not (cycle.more_body or cycle.response_complete):
            self._stop_waiting()
        elif self.deadline is None:
            self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """The other side, or this one, has closed the connection."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_request(self) -> None:
        self.deadline = self.loop.call_later(WITHIN_S, self.transport.close)

    def _stop_waiting(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None
