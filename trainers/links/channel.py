"""Small messages between the processes of a node, over unix sockets that keep message boundaries.

A socket for each pair carries the messages and tells of a death: it closes when the peer dies, however it died.
"""

import os
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from trainers.errors import PeerLost
from trainers.links.waiting import wait_flag

LONGEST = 256  # bytes a message


class SocketChannel:
    """One end of a connection."""

    def __init__(self, connection: socket.socket, peer: str) -> None:
        self.connection = connection
        self.peer = peer

    def send(self, message: bytes) -> None:
        try:
            with wait_flag():  # a peer that reads nothing lets the buffer fill
                self.connection.sendall(message)
        except OSError as error:
            raise PeerLost(f"{self.peer} is gone") from error

    def receive(self) -> bytes:
        """Wait for one message.

        Raises:
            TimeoutError: None came within the time that `set_timeout` gave.
            PeerLost: The other side is gone.
        """
        try:
            with wait_flag():
                message = self._receive()
        except BlockingIOError:
            raise TimeoutError(f"{self.peer} says nothing") from None
        except OSError as error:
            raise PeerLost(f"{self.peer} is gone") from error
        if not message:
            raise PeerLost(f"{self.peer} is gone")
        return message

    def _receive(self) -> bytes:
        """The next message; empty when there will be none.

        A peer that closes before it has read everything resets the connection. The error is raised once, and before
        what the peer had sent, which can still be read.
        """
        try:
            return self.connection.recv(LONGEST)
        except ConnectionResetError:
            return self.connection.recv(LONGEST)

    def set_timeout(self, seconds: float) -> None:
        """Have `receive` raise TimeoutError after so long without a message."""
        set_receive_timeout(self.connection, seconds)

    def finish(self, timeout_s: float) -> None:
        """Close; what was sent has gone out."""
        self.close()

    def close(self) -> None:
        """Close; whoever waits at either end gets PeerLost."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


def set_receive_timeout(connection: socket.socket, seconds: float) -> None:
    """Limit how long a receive on a connection may take; costs no further system call."""
    whole, part = divmod(round(seconds * 10**6), 10**6)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", whole, part))


def listen(path: Path) -> socket.socket:
    """A socket that peers reach by `path`, in place of one that a dead process left there."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    new = path.with_name(f"{path.name}~")
    new.unlink(missing_ok=True)  # that one may have died right here
    server.bind(str(new))
    server.listen(128)
    os.replace(new, path)
    return server


def connect(path: Path, peer: str, timeout_s: float, given_up: Callable[[], bool] = lambda: False) -> SocketChannel:
    """Reach a peer that may not be listening yet.

    Raises:
        PeerLost: It did not within `timeout_s`, or before it was given up.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            client.connect(str(path))
            return SocketChannel(client, peer)
        except (FileNotFoundError, ConnectionRefusedError):
            client.close()
            if given_up() or time.monotonic() > deadline:
                raise PeerLost(f"{peer} did not come within {timeout_s:g} s, or was given up") from None
            time.sleep(0.002)
