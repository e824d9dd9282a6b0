"""Serves an app on an address, and stops without leaving its streams hanging."""

import asyncio
import gc
import ipaddress
import logging
import signal
import socket
import sys
from types import FrameType

import uvicorn
from fastapi import FastAPI

from api.http.deadline import PromptRequests
from api.http.sse import Streams

GRACE_S = 5
GARBAGE = 50_000
"""New objects after which Python looks for garbage among them."""

SWITCH_S = 0.001
"""How long a thread may hold Python's lock while others want it. A list of jobs takes the lock anew for each row of the
database; at Python's own 5 ms it would wait 100 ms beside a thread that reads a large spec."""


class CannotServe(ValueError):
    """The address cannot be served on. Its argument is a sentence for people."""


def is_exposed(host: str) -> bool:
    """Whether others than this machine's own users can reach the address. Raises CannotServe where it is none."""
    return not _address(host).is_loopback


def bind(host: str, port: int, is_guarded: bool = False) -> socket.socket:
    """A listening socket. Raises CannotServe for an address that is taken, and, unguarded, for all but loopback."""
    address = _address(host)
    if not address.is_loopback and not is_guarded:
        raise CannotServe(
            f"refusing to listen on {host} without a token: whoever reaches it could run jobs; "
            "`millrace token create NAME --role admin` makes the first, and 127.0.0.1 needs none"
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


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise CannotServe(f"{host!r} is no IP address; use 127.0.0.1") from None


class Server(uvicorn.Server):
    """Uvicorn, which also tells the open streams to end; it would wait for them for ever."""

    def __init__(self, app: FastAPI, streams: Streams) -> None:
        log = None if logging.getLogger().handlers else uvicorn.config.LOGGING_CONFIG  # a log that is set up is kept
        config = uvicorn.Config(
            app, http=PromptRequests, log_config=log, log_level="warning", access_log=False,
            timeout_graceful_shutdown=GRACE_S,
        )  # fmt: skip
        super().__init__(config)
        self.streams = streams
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thresholds = gc.get_threshold()
        self.switch_s = sys.getswitchinterval()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until it is asked to stop."""
        self.loop = asyncio.get_running_loop()
        await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen. What stands by then stays, so that it is not looked through for garbage again and again; nor
        is what requests make, of which little is garbage that is not freed at once. Threads switch more often."""
        await super().startup(sockets)
        gc.collect()
        gc.freeze()
        gc.set_threshold(GARBAGE, *gc.get_threshold()[1:])
        sys.setswitchinterval(SWITCH_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, and let what stood be garbage again."""
        await super().shutdown(sockets)
        gc.unfreeze()
        gc.set_threshold(*self.thresholds)
        sys.setswitchinterval(self.switch_s)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGINT or SIGTERM. Not raised once more at the end, as uvicorn would: who called `run` has more to do."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.close()

    def close(self) -> None:
        """Stop, from any thread."""
        self.should_exit = True
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self.streams.closing.set)
