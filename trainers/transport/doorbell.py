"""Small messages between the processes of a node, over unix sockets that keep message boundaries.

A socket per pair is doorbell and death notice in one: it closes when the peer dies, however it died.
"""

import socket
import time
from contextlib import suppress
from pathlib import Path

from trainers.errors import PeerLost

LONGEST = 256  # bytes a message


class SocketDoorbell:
    """One end of a connection; a `Doorbell`."""

    def __init__(self, connection: socket.socket, peer: str) -> None:
        self.connection = connection
        self.peer = peer

    def ring(self, message: bytes) -> None:
        try:
            self.connection.sendall(message)
        except OSError as error:
            raise PeerLost(f"{self.peer} is gone") from error

    def answer(self) -> bytes:
        try:
            message = self.connection.recv(LONGEST)
        except OSError as error:
            raise PeerLost(f"{self.peer} is gone") from error
        if not message:
            raise PeerLost(f"{self.peer} is gone")
        return message

    def close(self) -> None:
        """Wake whoever waits at either end, with PeerLost."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


def listen(path: Path) -> socket.socket:
    """A socket that peers reach by `path`."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(str(path))
    server.listen(128)
    return server


def connect(path: Path, peer: str, timeout_s: float) -> SocketDoorbell:
    """Reach a peer that may not be listening yet.

    Raises:
        PeerLost: It did not within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            client.connect(str(path))
            return SocketDoorbell(client, peer)
        except (FileNotFoundError, ConnectionRefusedError):
            client.close()
            if time.monotonic() > deadline:
                raise PeerLost(f"{peer} did not come within {timeout_s:g} s") from None
            time.sleep(0.002)
