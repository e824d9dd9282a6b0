"""The parameter store of one node: slices and gradient slots in mapped files, sockets as doorbells.

A worker's backward pass writes its gradient straight into a slot of its own file; the shards read their slices of it
there. What travels is a slot's number and the push's identity. A fetch copies a version that the shard keeps pinned
until the worker's next message.

    params    R rows of (P,): each shard writes its slice of a row, and tells a reader which row is whole
    slots-w   rows of (P,) that worker w writes and the shards read
"""

import selectors
from collections.abc import Sequence
from pathlib import Path
from socket import socket

from torch import Tensor

from trainers.store.shard import Shard
from trainers.transport.doorbell import SocketDoorbell, connect, listen
from trainers.transport.mapped import MappedFile
from trainers.transport.shard_server import Server
from trainers.transport.store_client import SlottedStore
from trainers.transport.store_messages import JOIN, JOIN_TIMEOUT_S, PUSH, REQUEST, SNAPSHOT, reply, request


def params_file(folder: Path, num_workers: int, numel: int) -> MappedFile:
    """The ring: a row for each reader, the newest version, and the one being written."""
    return MappedFile(folder / "params", num_workers + 2, numel)


class SharedMemoryStore(SlottedStore[SocketDoorbell]):
    """A worker's side."""

    def __init__(self, folder: Path, worker: int, num_workers: int, shards: Sequence[slice], num_slots: int) -> None:
        numel = shards[-1].stop
        self.ring = params_file(folder, num_workers, numel)
        slots = MappedFile(folder / f"slots-{worker}", num_slots, numel)
        bells = [connect(folder / f"shard-{s}", f"shard {s}", JOIN_TIMEOUT_S) for s in range(len(shards))]
        super().__init__(bells, shards, slots.rows)
        for bell in bells:
            bell.ring(request(JOIN, worker, num_slots))
            bell.answer()

    def _hand_over(self, slot: int, message: bytes) -> None:
        self._send(message)

    def _take_version(self, shard: int, row: int) -> None:
        span = self.spans[shard]
        self.params[span] = self.ring.row(row)[span]


class ShardServer(Server[SocketDoorbell]):
    """A shard's side."""

    def __init__(self, folder: Path, index: int, span: slice, numel: int, shard: Shard) -> None:
        super().__init__(listen(folder / f"shard-{index}"), span, shard)
        self.folder = folder
        self.numel = numel
        self.slots: dict[int, MappedFile] = {}  # worker -> its gradient slots

    def _accept(self, connection: socket) -> None:
        self.selector.register(connection, selectors.EVENT_READ, data=None)

    def _readable(self, connection: socket) -> None:
        worker = self.selector.get_key(connection).data
        message = _received(connection)
        if not message:
            self.selector.unregister(connection)
            if worker in self.bells and self.bells[worker].connection is connection:
                self._forget(worker, self.bells[worker])
            connection.close()
            return
        kind, *numbers = REQUEST.unpack(message)
        if kind == JOIN:
            worker, num_slots = numbers[0], numbers[1]
            self.selector.modify(connection, selectors.EVENT_READ, data=worker)
            self.slots[worker] = MappedFile(self.folder / f"slots-{worker}", num_slots, self.numel)
            self._join(worker, SocketDoorbell(connection, f"worker {worker}"))
            return
        gradient = self.slots[worker].row(numbers[0])[self.span] if kind == PUSH else None
        self._request(worker, kind, numbers, gradient)

    def _send_version(self, worker: int, row: int) -> None:
        self._reply(worker, reply(SNAPSHOT, row, self.shard.examples))


def _received(connection: socket) -> bytes:
    """A worker's message; empty when it is gone."""
    try:
        return connection.recv(REQUEST.size)
    except OSError:
        return b""


def mapped_ring(folder: Path, num_workers: int, numel: int, span: slice, params: Tensor) -> list[Tensor]:
    """The rows of the ring, cut to a shard's slice; the first holds `params` (n,)."""
    ring = params_file(folder, num_workers, numel)
    rows = [ring.row(i)[span] for i in range(num_workers + 2)]
    rows[0].copy_(params)
    return rows
