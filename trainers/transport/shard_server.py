"""A shard's side of a parameter store: carries the workers' messages to a `Shard`, all in one thread."""

import selectors
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from socket import socket, socketpair
from typing import Generic

from torch import Tensor

from trainers.errors import PeerLost
from trainers.store.identity import PushIdentity
from trainers.store.shard import Applied, Arrived, Shard
from trainers.transport.store_client import Bell
from trainers.transport.store_messages import ACKNOWLEDGED, FETCH, LEAVE, PUSH, reply


class Server(ABC, Generic[Bell]):
    """What all transports' shards do; they differ in how a message and a slice come and go."""

    def __init__(self, listener: socket, span: slice, shard: Shard) -> None:
        self.listener = listener
        self.span = span
        self.shard = shard
        self.bells: dict[int, Bell] = {}  # worker -> its connection
        self.arrived: dict[tuple[int, PushIdentity], deque[int]] = defaultdict(deque)  # not acknowledged -> slots
        self.fetching: dict[int, int] = {}  # worker -> the clock that it waits for
        self.waiting: list[tuple[int, Callable[[Shard], None]]] = []  # (version, what to do once it is there)
        self.told: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.alarm, self.alarmed = socketpair()
        self.alarm.setblocking(False)
        self.closing = False
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.selector.register(self.alarmed, selectors.EVENT_READ)

    @abstractmethod
    def _accept(self, connection: socket) -> None:
        """A worker has connected."""

    @abstractmethod
    def _readable(self, connection: socket) -> None:
        """Something has come on a connection that `_accept` registered with the selector."""

    @abstractmethod
    def _send_version(self, worker: int, row: int) -> None:
        """Answer a fetch with a row of the ring."""

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
            self._end()

    def at_version(self, version: int, action: Callable[[Shard], None]) -> None:
        """Have the serving thread call `action` between two updates, when exactly so many have been made; at once if
        they have been already."""
        self._tell(lambda: self.waiting.append((version, action)))

    def close(self) -> None:
        """End `serve`; workers that wait get `StoreClosed`."""
        self.closing = True
        self._tell(lambda: None)

    def _tell(self, action: Callable[[], None]) -> None:
        """Have the serving thread do something."""
        self.told.put(action)
        with suppress(OSError):  # it is awake already, or has ended
            self.alarm.send(b"!")

    def _hear(self, connection: object) -> None:
        assert isinstance(connection, socket)
        if connection is self.listener:
            self._accept(self.listener.accept()[0])
        elif connection is self.alarmed:
            self.alarmed.recv(4096)
            while not self.told.empty():
                self.told.get()()
        else:
            self._readable(connection)

    # -- messages -------------------------------------------------------------------------------------------------

    def _join(self, worker: int, bell: Bell) -> None:
        self.bells[worker] = bell
        self._reply(worker, reply(ACKNOWLEDGED, self.shard.join(worker)))

    def _request(self, worker: int, kind: int, numbers: list[int], gradient: Tensor | None) -> None:
        if kind == FETCH:
            self.fetching[worker] = numbers[0]
        elif kind == PUSH:
            assert gradient is not None
            slot, epoch, first, last, group, clock, examples, minibatches = numbers
            identity = PushIdentity(epoch, first, last, group)
            self.arrived[worker, identity].append(slot)
            self.shard.push(Arrived(worker, identity, clock, examples, minibatches, gradient))
        elif kind == LEAVE:
            self.shard.leave(worker)

    def _forget(self, worker: int, bell: Bell) -> None:
        """A worker's connection closed: nobody waits for its clock, its version is free, its last pushes count."""
        if self.bells.get(worker) is not bell:
            return  # it has come back on another
        self.shard.leave(worker)
        del self.bells[worker]
        self.fetching.pop(worker, None)

    # -- answers --------------------------------------------------------------------------------------------------

    def _act(self) -> None:
        self._run_due()
        while self.shard.ripe:
            for applied in self.shard.apply(self._updates_until_due()):
                self._acknowledge(applied)
            self._run_due()
        for worker, min_clock in list(self.fetching.items()):
            if self.shard.may_fetch(min_clock):
                del self.fetching[worker]
                self._send_version(worker, self.shard.pin(worker))

    def _updates_until_due(self) -> int | None:
        """How many updates may share a pass before an action is due."""
        return min((version - self.shard.version for version, _ in self.waiting), default=None)

    def _run_due(self) -> None:
        if not self.waiting:
            return
        due = [action for version, action in self.waiting if version <= self.shard.version]
        self.waiting = [(version, action) for version, action in self.waiting if version > self.shard.version]
        for action in due:
            action(self.shard)

    def _acknowledge(self, applied: Applied) -> None:
        key = applied.push.worker, applied.push.identity
        slot = self.arrived[key].popleft()
        if not self.arrived[key]:
            del self.arrived[key]
        self._reply(applied.push.worker, reply(ACKNOWLEDGED, slot, applied.version, applied.staleness))

    def _reply(self, worker: int, message: bytes) -> None:
        with suppress(PeerLost):  # a dead worker is the coordinator's business
            if worker in self.bells:
                self.bells[worker].ring(message)

    def _end(self) -> None:
        for bell in self.bells.values():
            bell.close()
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]  # all of them are sockets
        self.alarm.close()
        self.selector.close()
