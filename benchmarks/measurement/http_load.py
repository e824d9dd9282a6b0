"""Load on a service over HTTP/1.1, from a client so plain that it takes little of the machine that it measures."""

import asyncio
import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

LIMIT_BYTES = 1 << 20
READ_BYTES = 1 << 16


@dataclass(frozen=True)
class Answer:
    """One answer."""

    status: int
    body: bytes
    seconds: float
    """From when the request was due."""


class Connection:
    """One connection that is kept open."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: str = "", due_s: float = 0.0, kind: str = "json"
    ) -> Answer:
        """One request, and its answer. kind: of the body, `json` or `yaml`."""
        due_s = due_s or time.perf_counter()
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection(self.host, self.port, limit=LIMIT_BYTES)
        assert self.reader is not None
        head = f"{method} {path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nContent-Type: application/{kind}\r\n"
        self.writer.write(f"{head}{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        told = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(told.partition("content-length: ")[2].partition("\r\n")[0])
        found = await self.reader.readexactly(length)
        return Answer(int(told.split(" ", 2)[1]), found, time.perf_counter() - due_s)

    def close(self) -> None:
        """Hang up."""
        if self.writer is not None:
            self.writer.close()


async def at_rate(address: tuple[str, int], bodies: Sequence[bytes], per_s: float, connections: int) -> list[Answer]:
    """Post jobs at a fixed rate, whether or not the service keeps up: waiting for a connection counts, too."""
    free: asyncio.Queue[Connection] = asyncio.Queue()
    for _ in range(connections):
        free.put_nowait(Connection(*address))
    begin = time.perf_counter() + 0.1

    async def one(index: int, body: bytes) -> Answer:
        due = begin + index / per_s
        await asyncio.sleep(due - time.perf_counter())
        connection = await free.get()
        answer = await connection.ask("POST", "/v1/jobs", body, f"Idempotency-Key: {index}-{begin}\r\n", due)
        free.put_nowait(connection)
        return answer

    answers = await asyncio.gather(*(one(index, body) for index, body in enumerate(bodies)))
    while not free.empty():
        free.get_nowait().close()
    return answers


async def at_once(address: tuple[str, int], count: int, body: bytes, key: str) -> list[Answer]:
    """So many posts with one key, each on a connection of its own."""
    connections = [Connection(*address) for _ in range(count)]
    headers = f"Idempotency-Key: {key}\r\n"
    answers = await asyncio.gather(*(c.ask("POST", "/v1/jobs", body, headers) for c in connections))
    for connection in connections:
        connection.close()
    return answers


@dataclass
class Subscriber:
    """One reader of a job's event stream, which may be cut off and goes on where it was."""

    address: tuple[str, int]
    path: str
    history: "hashlib._Hash" = field(default_factory=hashlib.sha256)
    """Of all that it was told, but for pings."""
    live_from_s: float = math.inf
    """In seconds since 1970."""
    delays_s: list[float] = field(default_factory=list)
    """From an event's time to its arrival, of those that came live."""
    seen: int = 0
    reconnects: int = 0
    writer: asyncio.StreamWriter | None = None
    ended: bool = False

    async def read(self) -> None:
        """To the terminal event, over as many connections as it takes."""
        while not self.ended:
            reader, self.writer = await asyncio.open_connection(*self.address, limit=LIMIT_BYTES)
            head = f"GET {self.path} HTTP/1.1\r\nHost: {self.address[0]}:{self.address[1]}\r\n"
            self.writer.write(f"{head}Last-Event-ID: {self.seen}\r\n\r\n".encode())
            try:
                await reader.readuntil(b"\r\n\r\n")
                await self._events(reader)
            except (OSError, asyncio.IncompleteReadError):
                self.reconnects += 1
            finally:
                self.writer.close()

    def cut(self) -> None:
        """Break the connection."""
        if self.writer is not None:
            self.writer.transport.abort()

    async def _events(self, reader: asyncio.StreamReader) -> None:
        rest = b""
        while chunk := await reader.read(READ_BYTES):
            now = time.time()
            *whole, rest = (rest + chunk).split(b"\n\n")
            for message in whole:
                start = message.find(b"id: ")
                if start >= 0:
                    self._take(message[start:], now)
            if self.ended:
                return
        raise asyncio.IncompleteReadError(rest, None)

    def _take(self, message: bytes, now: float) -> None:
        number, _, data = message.split(b"\n", 2)
        if int(number[4:]) != self.seen + 1:
            raise AssertionError(f"event {number[4:]!r} came after {self.seen}")
        self.seen += 1
        self.history.update(data)
        when = float(data.partition(b'"time":')[2].partition(b",")[0])
        if when > self.live_from_s:
            self.delays_s.append(now - when)
        self.ended = b'"type":"state"' in data and any(
            word in data for word in (b'"SUCCEEDED"', b'"FAILED"', b'"CANCELLED"')
        )
