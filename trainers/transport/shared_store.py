"""The parameter store of one node: slices and gradient slots in mapped files, sockets as doorbells.

A worker's backward pass writes its gradient straight into a slot of its own file; the shards read their slices of it
there. What travels is a slot's number and the push's identity. A fetch copies a version that the shard keeps pinned
until the worker's next message.

    params    R rows of (P,): each shard writes its slice of a row, and tells a reader which row is whole
    slots-w   rows of (P,) that worker w writes and the shards read
"""

import selectors
import struct
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from socket import socket as Socket
from socket import socketpair

import torch
from torch import Tensor

from trainers.errors import PeerLost, StoreClosed
from trainers.store.identity import PushIdentity
from trainers.store.shard import Applied, Arrived, Shard
from trainers.transport.doorbell import SocketDoorbell, connect, listen
from trainers.transport.mapped import MappedFile
from trainers.transport.protocols import Fetched, Handle, ParameterStore, Push

JOIN, LEAVE, FETCH, PUSH = 1, 2, 3, 4
REQUEST = struct.Struct("<9q")  # kind, then up to eight numbers
ACKNOWLEDGED, SNAPSHOT = 1, 2
REPLY = struct.Struct("<4q")  # kind, then up to three numbers
JOIN_TIMEOUT_S = 60.0


def params_file(folder: Path, num_workers: int, numel: int) -> MappedFile:
    """The ring: a row for each reader, the newest version, and the one being written."""
    return MappedFile(folder / "params", num_workers + 2, numel)


class SharedMemoryStore(ParameterStore):
    """A worker's side."""

    def __init__(self, folder: Path, worker: int, num_workers: int, shards: Sequence[slice], num_slots: int) -> None:
        numel = shards[-1].stop
        self.spans = shards
        self.ring = params_file(folder, num_workers, numel)
        self.slots = MappedFile(folder / f"slots-{worker}", num_slots, numel)
        self.params = torch.zeros(numel)
        self.free = list(range(num_slots))
        self.taken: int | None = None
        self.unacknowledged: dict[int, tuple[Push, set[int]]] = {}  # slot -> push, shards that have not applied it
        self.done: list[Push] = []
        self.counts: Counter[int] = Counter()
        self.versions: list[list[tuple[int, int]]] = [[] for _ in shards]  # a shard's answers to `fetch`: row, examples
        self.waited_s = 0.0
        self.bells = [connect(folder / f"shard-{s}", f"shard {s}", JOIN_TIMEOUT_S) for s in range(len(shards))]
        for bell in self.bells:
            bell.ring(request(JOIN, worker, num_slots))
            bell.answer()

    @property
    def staleness(self) -> dict[int, int]:
        return dict(self.counts)

    @property
    def applied(self) -> list[Push]:
        done, self.done = self.done, []
        return done

    def fetch(self, min_clock: int) -> Handle[Fetched]:
        self._send(request(FETCH, min_clock))

        def finish() -> Fetched:
            examples = []
            for shard, span in enumerate(self.spans):
                while not self.versions[shard]:
                    self._hear(shard)
                row, seen = self.versions[shard].pop()
                self.params[span] = self.ring.row(row)[span]
                examples.append(seen)
            return Fetched(self.params, min(examples))

        return Handle(finish)

    def gradient_buffer(self) -> Tensor:
        while not self.free:
            self._hear_oldest()
        self.taken = self.free[0]
        return self.slots.row(self.taken)

    def push(self, push: Push) -> Handle[None]:
        slot, self.taken = self.taken, None
        assert slot is not None, "push without gradient_buffer"
        self.free.remove(slot)
        self.unacknowledged[slot] = (push, set(range(len(self.spans))))
        i = push.identity
        self._send(request(PUSH, slot, i.epoch, i.first, i.last, i.group, push.clock, push.examples, push.minibatches))

        def finish() -> None:
            while slot in self.unacknowledged and self.unacknowledged[slot][0] is push:
                self._hear(min(self.unacknowledged[slot][1]))

        return Handle(finish)

    def leave(self) -> None:
        while self.unacknowledged:
            self._hear_oldest()
        self._send(request(LEAVE))

    def close(self) -> None:
        for bell in self.bells:
            bell.close()

    def _send(self, message: bytes) -> None:
        try:
            for bell in self.bells:
                bell.ring(message)
        except PeerLost as error:
            raise StoreClosed(str(error)) from error

    def _hear_oldest(self) -> None:
        """Wait for a shard that still owes an acknowledgement."""
        _, owing = next(iter(self.unacknowledged.values()))
        self._hear(min(owing))

    def _hear(self, shard: int) -> None:
        start = time.perf_counter()
        try:
            kind, slot_or_row, number, stale = REPLY.unpack(self.bells[shard].answer())
        except PeerLost as error:
            raise StoreClosed(str(error)) from error
        finally:
            self.waited_s += time.perf_counter() - start
        if kind == SNAPSHOT:
            self.versions[shard].append((slot_or_row, number))
            return
        self._acknowledge(shard, slot_or_row, stale)

    def _acknowledge(self, shard: int, slot: int, stale: int) -> None:
        push, owing = self.unacknowledged[slot]
        if shard == 0:
            self.counts[stale] += 1
        owing.discard(shard)
        if owing:
            return
        del self.unacknowledged[slot]
        self.free.append(slot)
        self.done.append(push)


class ShardServer:
    """A shard's side: carries the workers' messages to a `Shard`, all in one thread."""

    def __init__(self, folder: Path, index: int, span: slice, numel: int, shard: Shard) -> None:
        self.folder = folder
        self.span = span
        self.numel = numel
        self.shard = shard
        self.slots: dict[int, MappedFile] = {}  # worker -> its gradient slots
        self.arrived: dict[tuple[int, PushIdentity], int] = {}  # push that is not acknowledged -> its slot
        self.bells: dict[int, SocketDoorbell] = {}  # worker -> its connection
        self.fetching: dict[int, int] = {}  # worker -> the clock that it waits for
        self.waiting: list[tuple[int, Callable[[Shard], None]]] = []  # (version, what to do once it is there)
        self.calls: SimpleQueue[tuple[int, Callable[[Shard], None]]] = SimpleQueue()
        self.alarm, self.alarmed = socketpair()
        self.closing = False
        self.selector = selectors.DefaultSelector()
        self.listener = listen(folder / f"shard-{index}")
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.selector.register(self.alarmed, selectors.EVENT_READ)

    def serve(self) -> None:
        """Answer until `close`."""
        try:
            while not self.closing:
                ready = [key.fileobj for key, _ in self.selector.select()]
                while ready:  # all that has come, so that pushes which arrive together share one pass over the slice
                    for connection in ready:
                        self._hear(connection)
                    ready = [key.fileobj for key, _ in self.selector.select(timeout=0)]
                self._act()
        finally:
            for bell in self.bells.values():
                bell.close()
            self.listener.close()

    def at_version(self, version: int, action: Callable[[Shard], None]) -> None:
        """Have the serving thread call `action` between two updates, as soon as so many have been made."""
        self.calls.put((version, action))
        self._wake()

    def close(self) -> None:
        """End `serve`; workers that wait get `StoreClosed`."""
        self.closing = True
        self._wake()

    def _wake(self) -> None:
        with suppress(OSError):
            self.alarm.send(b"!")

    def _hear(self, connection: object) -> None:
        if connection is self.listener:
            accepted, _ = self.listener.accept()
            self.selector.register(accepted, selectors.EVENT_READ, data=None)
        elif connection is self.alarmed:
            self.alarmed.recv(1)
            while not self.calls.empty():
                self.waiting.append(self.calls.get())
        else:
            assert isinstance(connection, Socket)
            self._request(connection)

    def _request(self, connection: Socket) -> None:
        message = connection.recv(REQUEST.size)
        worker = self.selector.get_key(connection).data
        if not message:
            self.selector.unregister(connection)
            connection.close()
            if worker is not None:
                self._forget(worker)
            return
        kind, *numbers = REQUEST.unpack(message)
        if kind == JOIN:
            worker, num_slots = numbers[0], numbers[1]
            self.selector.modify(connection, selectors.EVENT_READ, data=worker)
            self.slots[worker] = MappedFile(self.folder / f"slots-{worker}", num_slots, self.numel)
            self.bells[worker] = SocketDoorbell(connection, f"worker {worker}")
            self._reply(worker, ACKNOWLEDGED, self.shard.join(worker))
        elif kind == FETCH:
            self.fetching[worker] = numbers[0]
        elif kind == PUSH:
            slot, epoch, first, last, group, clock, examples, minibatches = numbers
            identity = PushIdentity(epoch, first, last, group)
            self.arrived[worker, identity] = slot
            gradient = self.slots[worker].row(slot)[self.span]
            self.shard.push(Arrived(worker, identity, clock, examples, minibatches, gradient))
        elif kind == LEAVE:
            self.shard.leave(worker)

    def _act(self) -> None:
        for applied in self.shard.apply():
            self._acknowledge(applied)
        for worker, min_clock in list(self.fetching.items()):
            if self.shard.may_fetch(min_clock):
                del self.fetching[worker]
                self._reply(worker, SNAPSHOT, self.shard.pin(worker), self.shard.examples)
        due = [action for version, action in self.waiting if version <= self.shard.version]
        self.waiting = [(version, action) for version, action in self.waiting if version > self.shard.version]
        for action in due:
            action(self.shard)

    def _acknowledge(self, applied: Applied) -> None:
        worker, identity = applied.push.worker, applied.push.identity
        self._reply(worker, ACKNOWLEDGED, self.arrived.pop((worker, identity)), applied.version, applied.staleness)

    def _reply(self, worker: int, *numbers: int) -> None:
        with suppress(PeerLost):  # a dead worker is the coordinator's business
            if worker in self.bells:
                self.bells[worker].ring(REPLY.pack(*numbers, *[0] * (4 - len(numbers))))

    def _forget(self, worker: int) -> None:
        """A worker's connection closed: nobody waits for its clock, its version is free, its last pushes count."""
        self.shard.leave(worker)
        self.bells.pop(worker, None)
        self.fetching.pop(worker, None)


def request(kind: int, *numbers: int) -> bytes:
    """A message to a shard."""
    return REQUEST.pack(kind, *numbers, *[0] * (8 - len(numbers)))


def mapped_ring(folder: Path, num_workers: int, numel: int, span: slice, params: Tensor) -> list[Tensor]:
    """The rows of the ring, cut to a shard's slice; the first holds `params` (n,)."""
    ring = params_file(folder, num_workers, numel)
    rows = [ring.row(i)[span] for i in range(num_workers + 2)]
    rows[0].copy_(params)
    return rows
