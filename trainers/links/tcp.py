"""Connections between nodes: messages of a fixed size, and vectors that go out as they lie in memory. No torch."""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING

from trainers.errors import PeerLost
from trainers.links.channel import set_receive_timeout

if TYPE_CHECKING:
    from torch import Tensor


class Wire(ABC):
    """One end of a connection between nodes: messages, each of which may have a vector behind it."""

    peer: str
    """Who is at the other end, for errors."""

    @abstractmethod
    def send(self, message: bytes, vector: Tensor | None = None) -> None:
        """Send a message and a vector of a type that numpy knows, which must stay as it is until the peer has answered.

        That the peer is gone is noticed by `receive`.
        """

    @abstractmethod
    def receive(self) -> bytes:
        """Wait for one message.

        Raises:
            TimeoutError: None came within the time that `set_timeout` gave.
            PeerLost: The other side is gone.
        """

    @abstractmethod
    def receive_into(self, vector: Tensor) -> None:
        """Fill a vector with that behind the message that `receive` gave last.

        Raises:
            PeerLost: The other side is gone.
        """

    @abstractmethod
    def set_timeout(self, seconds: float) -> None:
        """Have `receive` raise TimeoutError after so long without a message."""

    @abstractmethod
    def finish(self, timeout_s: float) -> None:
        """Close once what was sent has gone out."""

    @abstractmethod
    def close(self) -> None:
        """Close; whoever waits at either end gets PeerLost."""


class Connection(Wire):
    """A TCP connection.

    A thread of its own sends, so that neither computing nor serving waits for a slow reader.
    """

    def __init__(self, connection: socket.socket, peer: str, message_bytes: int) -> None:
        self.connection = connection
        self.peer = peer
        self.message_bytes = message_bytes
        self.outgoing: SimpleQueue[tuple[bytes, Tensor | None] | None] = SimpleQueue()
        self.sender = threading.Thread(target=self._send, name=f"to {peer}", daemon=True)
        self.sender.start()

    def send(self, message: bytes, vector: Tensor | None = None) -> None:
        self.outgoing.put((message, vector))

    def receive(self) -> bytes:
        message = bytearray(self.message_bytes)
        self._receive(memoryview(message), is_patient=False)
        return bytes(message)

    def receive_into(self, vector: Tensor) -> None:
        self._receive(memory_of(vector))

    def set_timeout(self, seconds: float) -> None:
        set_receive_timeout(self.connection, seconds)

    def finish(self, timeout_s: float) -> None:
        self.outgoing.put(None)
        self.sender.join(timeout_s)
        self.close()

    def close(self) -> None:
        self.outgoing.put(None)
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()

    def _receive(self, memory: memoryview, is_patient: bool = True) -> None:
        """Fill `memory`; unless patient, nothing at all within the connection's time is a TimeoutError."""
        left = memory
        while left:
            try:
                count = self.connection.recv_into(left)
            except BlockingIOError:
                if not is_patient and len(left) == len(memory):
                    raise TimeoutError(f"{self.peer} says nothing") from None
                continue
            except OSError as error:
                raise PeerLost(f"{self.peer} is gone") from error
            if not count:
                raise PeerLost(f"{self.peer} is gone")
            left = left[count:]

    def _send(self) -> None:
        with suppress(OSError):  # the reading side is told as well
            while (item := self.outgoing.get()) is not None:
                message, vector = item
                self.connection.sendall(message)
                if vector is not None:
                    self.connection.sendall(memory_of(vector))


SILENT_S = 10.0
"""After about so long a node that fell silent counts as dead."""


def keep_watch(connection: socket.socket, silent_s: float = SILENT_S) -> socket.socket:
    """Send small messages at once, and take a node that is silent for so long for dead."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    silent_ms = round(1000 * silent_s)  # counts for the probes, too
    for option, value in (
        ("TCP_KEEPIDLE", 4), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", silent_ms),
    ):  # fmt: skip
        if hasattr(socket, option):  # not on every system
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return connection


def receive_exactly(connection: socket.socket, memory: memoryview) -> None:
    """Fill `memory` from a connection.

    Raises:
        ConnectionError: It ended.
    """
    while memory:
        count = connection.recv_into(memory)
        if not count:
            raise ConnectionError("the connection was closed")
        memory = memory[count:]


def memory_of(vector: Tensor) -> memoryview:
    """The bytes of a contiguous vector on the CPU, not a copy."""
    return vector.numpy().data.cast("B")
