"""An event log as Server-Sent Events: numbered, so that a reader who was cut off goes on where it was."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse

from api.http.auth import caller
from api.http.problems import ProblemError
from api.http.standing import Standing
from service import Event

Wanted = Callable[[Event], bool]
MEDIA_TYPE = "text/event-stream"
RETRY = b"retry: 1000\n\n"  # milliseconds until a browser tries again
PING = b": ping\n\n"


@dataclass
class Streams:
    """What all streams of one server share."""

    ping_s: float = 15.0
    longest_s: float = 900.0
    """After which a stream is ended, whatever it tells of; its reader comes back, if the token still works."""
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server stops: streams end at once, and their readers come back to the next server."""
    standing: Standing = field(default_factory=lambda: Standing(None))
    """Ends the streams of tokens that are revoked."""


def position(request: Request, after: int | None) -> int:
    """From which number on: the header of a reconnecting reader counts more than the address that it repeats."""
    header = request.headers.get("last-event-id")
    if header is None or header == "":
        return after or 0
    if not (header.isascii() and header.isdigit() and len(header) <= 18):
        raise ProblemError(422, "Last-Event-ID is the number of the last event that was seen", "/header/Last-Event-ID")
    return int(header)


def wants_json(request: Request) -> bool:
    """Whether the reader asks for JSON rather than a stream."""
    accept = request.headers.get("accept", "")
    return "application/json" in accept and MEDIA_TYPE not in accept


def encode(event: Event) -> bytes:
    """One event: its number, its type, and all of it as JSON."""
    return f"id: {event.seq}\nevent: {event.type}\ndata: {event.text}\n\n".encode()


def stream(
    request: Request, batches: AsyncIterator[list[Event]], streams: Streams, wanted: Wanted = bool
) -> StreamingResponse:
    """Answer with the events as they come, those that are wanted only, with pings while none do."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    by = caller(request)
    left_s = streams.longest_s if by.expires is None else min(streams.longest_s, by.expires - time.time())
    chunks = _chunks(by.token, batches, streams, wanted, left_s)
    return StreamingResponse(chunks, media_type=MEDIA_TYPE, headers=headers)


async def _chunks(
    token: str | None, batches: AsyncIterator[list[Event]], streams: Streams, wanted: Wanted, longest_s: float
) -> AsyncIterator[bytes]:
    yield RETRY
    until_s = time.monotonic() + longest_s
    coming: asyncio.Future[list[Event]] | None = None
    with streams.standing.ended(token) as ended:
        closing = asyncio.ensure_future(_either(streams.closing, ended))
        try:
            while not closing.done() and (left_s := until_s - time.monotonic()) > 0:
                # Kept over pings: cancelling it would end the iterator.
                coming = coming or asyncio.ensure_future(_next(batches))
                waited_for: set[asyncio.Future[Any]] = {coming, closing}
                await asyncio.wait(waited_for, timeout=min(streams.ping_s, left_s), return_when=asyncio.FIRST_COMPLETED)
                if coming.done():
                    events, coming = coming.result(), None
                    if not events:
                        return
                    if chunk := b"".join(encode(event) for event in events if wanted(event)):
                        yield chunk
                elif not closing.done():
                    yield PING
        finally:
            for task in (closing, coming):
                if task is not None:
                    task.cancel()


async def _either(*events: asyncio.Event) -> None:
    """Wait until one of them is set."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


async def _next(batches: AsyncIterator[list[Event]]) -> list[Event]:
    """The next batch; an empty one at the end."""
    return await anext(batches, [])
