"""Sends the head of a response together with its body: each write is a system call, and wakes whoever reads it."""

import asyncio
from typing import Any

HEAD = b"HTTP/1."


class OneWrite:
    """A transport under uvicorn, which writes a response's head by itself. It is kept until what follows it is written,
    or until the loop's next turn where nothing does."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self.transport = transport
        self.loop = loop
        self.head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)

    def write(self, data: bytes) -> None:
        """Send it, now or with what is written next."""
        if self.head:
            head, self.head = self.head, b""
            self.transport.writelines((head, data))
        elif data.startswith(HEAD):
            self.head = data
            self.loop.call_soon(self._send_head)
        else:
            self.transport.write(data)

    def close(self) -> None:
        """Close the connection once all is sent."""
        self._send_head()
        self.transport.close()

    def _send_head(self) -> None:
        head, self.head = self.head, b""
        if head and not self.transport.is_closing():  # whoever asked may have gone since
            self.transport.write(head)
