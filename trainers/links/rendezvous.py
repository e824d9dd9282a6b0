"""Where processes on different nodes find each other: a small key-value store that one of them hosts.

It stands in for torch's TCPStore for three reasons: a process without torch can host it, as the coordinator is; it
can tell all members of a group that one of them ended, however it ended; and it never asks for a host's name (torch's
does at every connection, which costs 5 s wherever the name server does not answer).
"""

import selectors
import socket
import struct
import threading
from collections import defaultdict
from contextlib import suppress

from trainers.errors import PeerLost
from trainers.links.tcp import keep_watch, receive_exactly

Address = tuple[str, int]
"""Host and port of the key-value store."""

SET, GET, HAS, AT_END = 1, 2, 3, 4
FRAME = struct.Struct("<qqq")  # kind, bytes of the key, bytes of the value


class Rendezvous:
    """Serves keys and values in a thread of its own until it is closed."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.values: dict[str, bytes] = {}
        self.waiting: dict[str, list[socket.socket]] = defaultdict(list)
        self.at_end: dict[socket.socket, list[str]] = defaultdict(list)  # keys to set when a connection ends
        self.selector = selectors.DefaultSelector()
        self.alarm, self.alarmed = socket.socketpair()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.listener.getsockname()[1])

    def serve(self) -> None:
        """Answer until `close`."""
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.selector.register(self.alarmed, selectors.EVENT_READ)
        while True:
            for key, _ in self.selector.select():
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                if connection is self.alarmed:
                    self._end()
                    return
                if connection is self.listener:
                    self.selector.register(keep_watch(connection.accept()[0]), selectors.EVENT_READ)
                else:
                    self._hear(connection)

    def close(self) -> None:
        """End `serve` and every connection."""
        with suppress(OSError):
            self.alarm.send(b"!")

    def _hear(self, connection: socket.socket) -> None:
        try:
            kind, key, value = _receive(connection)
        except OSError:
            self.selector.unregister(connection)
            connection.close()
            for key in self.at_end.pop(connection, []):
                self._set(key, b"")
            return
        if kind == SET:
            self._set(key, value)
        elif kind == AT_END:
            self.at_end[connection].append(key)
        elif kind == HAS:
            _send(connection, HAS, key, b"1" if key in self.values else b"")
        elif key in self.values:
            _send(connection, GET, key, self.values[key])
        else:
            self.waiting[key].append(connection)

    def _set(self, key: str, value: bytes) -> None:
        self.values[key] = value
        for connection in self.waiting.pop(key, []):
            with suppress(OSError):
                _send(connection, GET, key, value)

    def _end(self) -> None:
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]  # all of them are sockets
        self.alarm.close()
        self.selector.close()


class RendezvousClient:
    """A connection to the key-value store, used by one thread at a time; `close` by any."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def set(self, key: str, value: bytes) -> None:
        """Tell everyone.

        Raises:
            PeerLost: The store is gone.
        """
        try:
            _send(self.connection, SET, key, value)
        except OSError as error:
            raise PeerLost("the rendezvous is gone") from error

    def set_at_end(self, key: str) -> None:
        """Have the key set when this connection ends, if only because the process does."""
        _send(self.connection, AT_END, key, b"")

    def get(self, key: str, timeout_s: float | None = None) -> bytes:
        """The value, once it is there.

        Raises:
            PeerLost: It was not there within `timeout_s`, or the store is gone; the connection is of no use any more.
        """
        try:
            self.connection.settimeout(timeout_s)
            _send(self.connection, GET, key, b"")
            return _receive(self.connection)[2]
        except TimeoutError as error:
            raise PeerLost(f"nobody told {key} within {timeout_s:g} s") from error
        except OSError as error:
            raise PeerLost("the rendezvous is gone") from error

    def has(self, key: str) -> bool:
        """Whether it has been told.

        Raises:
            PeerLost: The store is gone.
        """
        try:
            _send(self.connection, HAS, key, b"")
            return bool(_receive(self.connection)[2])
        except OSError as error:
            raise PeerLost("the rendezvous is gone") from error

    def close(self) -> None:
        """Wake whoever waits on it, with PeerLost."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


def host_rendezvous(host: str = "", port: int = 0) -> Rendezvous:
    """Serve keys and values from this process, by default on all its addresses, on a port of the system's choice."""
    rendezvous = Rendezvous(socket.create_server((host, port), backlog=128))
    threading.Thread(target=rendezvous.serve, name="rendezvous", daemon=True).start()
    return rendezvous


def reach_rendezvous(address: Address, timeout_s: float) -> RendezvousClient:
    """A connection to the key-value store.

    Raises:
        PeerLost: It did not answer within `timeout_s`.
    """
    try:
        connection = socket.create_connection(address, timeout_s)
    except OSError as error:
        raise PeerLost(f"the rendezvous at {address[0]}:{address[1]} does not answer: {error}") from error
    return RendezvousClient(keep_watch(connection))


def own_host(client: RendezvousClient) -> str:
    """This node's address on the way to the rendezvous, so that nobody has to name a network interface."""
    return str(client.connection.getsockname()[0])


def _send(connection: socket.socket, kind: int, key: str, value: bytes) -> None:
    name = key.encode()
    connection.sendall(FRAME.pack(kind, len(name), len(value)) + name + value)


def _receive(connection: socket.socket) -> tuple[int, str, bytes]:
    frame = bytearray(FRAME.size)
    receive_exactly(connection, memoryview(frame))
    kind, key_bytes, value_bytes = FRAME.unpack(frame)
    rest = bytearray(key_bytes + value_bytes)
    receive_exactly(connection, memoryview(rest))
    return kind, rest[:key_bytes].decode(), bytes(rest[key_bytes:])
