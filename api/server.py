"""Serves an app on a loopback address, and stops without leaving its streams hanging."""

import asyncio
import ipaddress
import signal
import socket
from types import FrameType

import uvicorn
from fastapi import FastAPI

from api.sse import Streams

GRACE_S = 5


class CannotServe(ValueError):
    """The address cannot be served on. Its argument is a sentence for people."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises CannotServe for every address that is not loopback, or is taken."""
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise CannotServe(f"{host!r} is no IP address; use 127.0.0.1") from None
    if not address.is_loopback:
        raise CannotServe(
            f"refusing to listen on {host}: without access control the service is for this machine only; "
            "use 127.0.0.1, and an SSH tunnel from elsewhere"
        )
    listening = socket.socket(socket.AF_INET6 if address.version == 6 else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((str(address), port))
        listening.listen(1024)
    except (OSError, OverflowError) as error:
        listening.close()
        raise CannotServe(f"cannot listen on {host}:{port}: {error}; choose another --port") from None
    return listening


class Server(uvicorn.Server):
    """Uvicorn, which also tells the open streams to end; it would wait for them for ever."""

    def __init__(self, app: FastAPI, streams: Streams) -> None:
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=GRACE_S)
        super().__init__(config)
        self.streams = streams
        self.loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until told to stop."""
        self.loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGINT or SIGTERM. Not raised once more at the end, as uvicorn would: who called `run` has more to do."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.close()

    def close(self) -> None:
        """Stop, from any thread."""
        self.should_exit = True
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self.streams.closing.set)
