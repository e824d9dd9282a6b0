"""The parameter store of one node: slices and gradient slots in mapped files, sockets as channel.

A worker's backward pass writes its gradient straight into a slot of its own file; the shards read their slices of it
there. What travels is a slot's number and the push's identity. A version is read where it lies: the shard keeps it
pinned until the worker's next fetch. Groups of parameters that are fetched by themselves are copied.

    params    R rows of (P,): each shard writes its slice of a row, and tells a reader which row is whole
    slots-w   rows of (P,) that worker w writes and the shards read; w holds a lock on it as long as it lives
"""

import fcntl
import os
import selectors
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from socket import socket

from torch import Tensor

from trainers.links.channel import SocketChannel, connect, listen
from trainers.links.mapped import BYTES, MappedFile
from trainers.optim.slices import aligned
from trainers.parameter_server.client import SlottedStore
from trainers.parameter_server.groups import GroupSlice
from trainers.parameter_server.page_mapped import PAGE, PageMappedRows, can_map_pages
from trainers.parameter_server.pending import PendingPush
from trainers.parameter_server.server import FORGOTTEN, Server
from trainers.parameter_server.wire_format import JOIN, JOIN_TIMEOUT_S, PUSHES, REQUEST


def params_file(folder: Path, rows: int, numel: int) -> MappedFile:
    """The ring: a row for each reader, the newest version, and the one being written. Rows begin with a page."""
    return MappedFile(folder / "params", rows, aligned(numel, PAGE))


class SharedMemoryStore(SlottedStore[SocketChannel]):
    """A worker's side. Its number must not have been another worker's in this folder."""

    reads_slots = True

    def __init__(
        self, folder: Path, worker: int, shards: Sequence[slice], num_slots: int, groups: Sequence[slice] = ()
    ) -> None:
        self.folder = folder
        slots = MappedFile(folder / f"slots-{worker}", num_slots, shards[-1].stop)
        self.life = os.open(slots.path, os.O_RDWR)
        fcntl.flock(self.life, fcntl.LOCK_EX)
        super().__init__(worker, shards, slots.rows, groups)
        self.page_mapped: PageMappedRows | None = None
        self._join_all()
        self.ring = _existing_ring(folder, shards[-1].stop)
        self.rows = [0] * len(shards)  # of the ring, as each shard said last
        if not groups and can_map_pages(shards):  # read in place
            self.page_mapped = PageMappedRows(self.ring.path, self.ring.numel, shards)

    def _connect(self, shard: int) -> tuple[SocketChannel, int]:
        timeout_s = 0.0 if shard in self.joined else JOIN_TIMEOUT_S
        return connect(self.folder / f"shard-{shard}", f"shard {shard}", timeout_s), 0

    def _hand_over(self, shard: int, sent: PendingPush, message: bytes) -> None:
        self.channels[shard].send(message)

    def _take_version(self, shard: int, group: int, row: int) -> None:
        span = self.parts[shard][group]
        if self.page_mapped is None:
            self.params[span] = self.ring.row(row)[span]
        self.rows[shard] = row

    def _fetched(self) -> Tensor:
        return self.params if self.page_mapped is None else self.page_mapped.vector(tuple(self.rows))

    def close(self) -> None:
        if self.closed.is_set():
            return
        super().close()
        os.close(self.life)
        if self.page_mapped is not None:
            self.page_mapped.close()


class ShardServer(Server[SocketChannel]):
    """A shard's side."""

    def __init__(self, folder: Path, index: int, numel: int, pieces: dict[int, GroupSlice]) -> None:
        super().__init__(listen(folder / f"shard-{index}"), pieces)
        self.folder = folder
        self.numel = numel
        self.slots: dict[int, MappedFile] = {}  # worker -> its gradient slots

    def _accept(self, connection: socket) -> None:
        self.selector.register(connection, selectors.EVENT_READ, data=None)

    def _readable(self, connection: socket) -> None:
        if connection.fileno() < 0:
            return  # its worker was let go in this round
        worker = self.selector.get_key(connection).data
        message = _received(connection)
        if not message:
            self.selector.unregister(connection)
            if worker in self.channels and self.channels[worker].connection is connection:
                self._forget(worker, self.channels[worker])
            connection.close()
            return
        kind, *numbers = REQUEST.unpack(message)
        if kind == JOIN:
            self._introduce(connection, *numbers[:2])
            return
        gradient = None
        if kind in PUSHES and worker in self.slots:
            gradient = self.slots[worker].row(numbers[1])[self.pieces[numbers[5]].span]
        self._request(worker, kind, numbers, gradient)

    def _introduce(self, connection: socket, worker: int, num_slots: int) -> None:
        """A worker says who it is, for the first time or again."""
        channel, path = SocketChannel(connection, f"worker {worker}"), self._slots_path(worker)
        if not path.exists():
            self._refuse(channel, FORGOTTEN)
            return
        self.selector.modify(connection, selectors.EVENT_READ, data=worker)
        self.slots[worker] = MappedFile(path, num_slots, self.numel)
        self._join(worker, channel)

    def _send_version(self, worker: int, group: int, row: int, message: bytes) -> None:
        self._reply(worker, message)

    def _let_go(self, worker: int, channel: SocketChannel | None) -> None:
        """Its slots keep their memory as long as a push in them waits."""
        self.slots.pop(worker, None)
        with suppress(FileNotFoundError):
            self._slots_path(worker).unlink()
        if channel is not None:
            with suppress(KeyError, ValueError):  # it was unregistered when it closed
                self.selector.unregister(channel.connection)

    def _is_dead(self, worker: int) -> bool:
        """Whether nobody holds the lock any more that a worker holds."""
        try:
            descriptor = os.open(self._slots_path(worker), os.O_RDWR)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(descriptor)
        return True

    def _slots_path(self, worker: int) -> Path:
        return self.folder / f"slots-{worker}"


def _received(connection: socket) -> bytes:
    """A worker's message; empty when it is gone."""
    try:
        return connection.recv(REQUEST.size)
    except OSError:
        return b""


def _existing_ring(folder: Path, numel: int) -> MappedFile:
    """As the shards made it, however many workers it is for."""
    row_bytes = aligned(numel, PAGE) * BYTES
    return params_file(folder, (folder / "params").stat().st_size // row_bytes, numel)


def mapped_ring(folder: Path, capacity: int, numel: int, span: slice) -> list[Tensor]:
    """The rows of the ring for so many workers at a time, cut to a shard's slice."""
    ring = params_file(folder, capacity + 2, numel)
    return [ring.row(i)[span] for i in range(capacity + 2)]
