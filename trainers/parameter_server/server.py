"""A shard's side of a parameter store: one thread carries the workers' messages to its `Shard`s.

There is one `Shard` for each group of parameters of which a part lies in the slice.
"""

import selectors
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from socket import socket, socketpair
from typing import Generic, TypeVar

from torch import Tensor

from trainers.errors import PeerLost, StoreClosed, Superseded
from trainers.parameter_server.client import Channel
from trainers.parameter_server.groups import GroupSlice
from trainers.parameter_server.push_identity import PushIdentity
from trainers.parameter_server.shard import AppliedPush, ReceivedPush, Shard
from trainers.parameter_server.wire_format import (
    ACKNOWLEDGED,
    CLAIM,
    CLAIMED,
    CLOCK,
    CLOSED,
    FETCH,
    JOINED,
    LEAVE,
    PASS,
    PUSHES,
    SNAPSHOT,
    number_of,
    reply,
)

T = TypeVar("T")

LOOK_S = 0.25
"""How often a shard that took over checks whether a worker that has not come back is dead."""

FAREWELL_S = 1.0
"""How long the last message to a worker may take to go out."""

SHUT_DOWN, NO_ROOM, FORGOTTEN = range(3)


class Server(ABC, Generic[Channel]):
    """What the shards of all transports have in common; transports differ in how messages and slices are carried."""

    def __init__(self, listener: socket | None, pieces: dict[int, GroupSlice]) -> None:
        """listener: where workers connect; none where somebody else does that for them. pieces: by the number of the
        group, in the order of the vector."""
        self.listener = listener
        self.pieces = pieces
        self.channels: dict[int, Channel] = {}  # worker -> its connection
        # (worker, group) -> the clock it waits for, serial, and `taken` once the worker's own pushes are in the version
        self.fetching: dict[tuple[int, int], tuple[int, int, int]] = {}
        self.answered: dict[tuple[int, int], tuple[int, int, bytes]] = {}  # likewise -> serial, row, and the answer
        self.missing: set[int] = set()
        """Workers of the process before this one that have not come back."""
        for piece in pieces.values():
            self.missing.update(piece.shard.clocks, piece.shard.pinned)
        self.begun_s = time.monotonic()
        self.begun_at = {group: piece.shard.version for group, piece in pieces.items()}
        self.lost = 0
        """Updates that were acknowledged to workers and that are not in the version from which this process began."""
        self.waiting: list[tuple[int, Callable[[Shard], None]]] = []  # (version, what to do once it is there)
        self.actions: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.alarm, self.alarmed = socketpair()
        self.alarm.setblocking(False)
        self.closing = self.ended = False
        self.selector = selectors.DefaultSelector()
        if listener is not None:
            self.selector.register(listener, selectors.EVENT_READ)
        self.selector.register(self.alarmed, selectors.EVENT_READ)

    def _accept(self, connection: socket) -> None:
        """A worker has connected."""
        raise NotImplementedError("a listener asks for it")

    def _readable(self, connection: socket) -> None:
        """Something has come on a connection that `_accept` registered with the selector."""
        raise NotImplementedError("a registered connection asks for it")

    @abstractmethod
    def _send_version(self, worker: int, group: int, row: int, message: bytes) -> None:
        """Answer a fetch with a row of the group's ring."""

    @abstractmethod
    def _let_go(self, worker: int, channel: Channel | None) -> None:
        """A worker is gone: release what was kept for it. Its connection, where it has one, is closed next."""

    @abstractmethod
    def _is_dead(self, worker: int) -> bool:
        """Whether a worker that was connected to the process before this one cannot come back."""

    @property
    def span(self) -> slice:
        """The slice of the flat vector that all pieces make up."""
        *_, last = self.pieces.values()
        return slice(self.first.span.start, last.span.stop)

    @property
    def first(self) -> GroupSlice:
        """Of the first group: the only one, unless the vector is divided into groups."""
        return next(iter(self.pieces.values()))

    def serve(self) -> None:
        """Answer until `close`.

        Raises:
            Superseded: Another process serves in this one's place; the workers' connections are closed without a word.
        """
        try:
            while not self.closing:
                ready = [key.fileobj for key, _ in self.selector.select(self._wait_s())]
                self._give_up_the_dead()
                while ready:  # all that has come, so that pushes which arrive together share one pass over the slice
                    for connection in ready:
                        self._handle(connection)
                    ready = [key.fileobj for key, _ in self.selector.select(timeout=0)]
                self._act()
        except Superseded:
            self.channels.clear()  # no word of an end: whose they are, they go to the other
            raise
        finally:
            self._end()

    def _wait_s(self) -> float | None:
        """How long to wait for messages: not at all while there are updates to make, which nobody tells again."""
        if any(piece.shard.ripe for piece in self.pieces.values()):
            return 0.0
        return LOOK_S if self.missing else None

    def at_version(self, version: int, action: Callable[[Shard], None]) -> None:
        """Have the serving thread call `action` with the first group's shard between two updates, when exactly so many
        of that have been made; at once if they have been already."""
        self._submit(lambda: self.waiting.append((version, action)))

    def ask(self, question: Callable[[], T]) -> T:
        """Have the serving thread answer, between two updates.

        Raises:
            StoreClosed: It has ended.
        """
        answer: Future[T] = Future()

        def tell() -> None:
            try:
                answer.set_result(question())
            except Superseded:
                raise  # it ends `serve`
            except Exception as error:
                answer.set_exception(error)

        self._submit(tell)
        while True:
            with suppress(TimeoutError):
                return answer.result(LOOK_S)
            if self.ended:
                raise StoreClosed("the shard has ended")

    def prepare_generation(self, version: int) -> None:
        """Let go of all workers, and have every piece forget what is not applied and go back to `version`; called by
        the serving thread. A worker of the generation before gets `StoreClosed`."""
        for worker in [*self.channels, *self.missing]:
            self._dismiss(worker)
        self.missing.clear()
        self.fetching.clear()
        self.answered.clear()
        for piece in self.pieces.values():
            piece.shard.prepare_generation(version)

    def close(self) -> None:
        """End `serve`; workers that wait get `StoreClosed`."""
        self.closing = True
        self._submit(lambda: None)

    def _submit(self, action: Callable[[], None]) -> None:
        """Have the serving thread do something."""
        self.actions.put(action)
        with suppress(OSError):  # it is awake already, or has ended
            self.alarm.send(b"!")

    def _handle(self, connection: object) -> None:
        assert isinstance(connection, socket)
        if connection is self.listener:
            self._accept(connection.accept()[0])
        elif connection is self.alarmed:
            self.alarmed.recv(4096)
            while not self.actions.empty():
                self.actions.get()()
        else:
            self._readable(connection)

    # -- messages -------------------------------------------------------------------------------------------------

    def _join(self, worker: int, channel: Channel) -> None:
        if (
            worker not in self.channels
            and worker not in self.missing
            and self._num_members >= self.first.shard.capacity
        ):
            self._refuse(channel, NO_ROOM)
            return
        self.missing.discard(worker)
        self.channels[worker] = channel
        for group, piece in self.pieces.items():
            clock = piece.shard.join(worker)
            self._reply(worker, reply(JOINED, group, clock, piece.shard.version))

    @property
    def _num_members(self) -> int:
        return len(self.channels) + len(self.missing)

    def _refuse(self, channel: Channel, why: int) -> None:
        with suppress(PeerLost):
            channel.send(reply(CLOSED, why))

    def _request(self, worker: int, kind: int, numbers: list[int], gradient: Tensor | None) -> None:
        if worker not in self.channels:
            return  # it was let go
        if kind == FETCH:
            min_clock, group, serial = numbers[:3]
            self._fetch(worker, group, min_clock, serial)
        elif kind in PUSHES:
            assert gradient is not None
            serial, _, epoch, first, last, group, clock, examples, minibatches, weight, base = numbers
            identity = PushIdentity(epoch, first, last, group)
            arrived = ReceivedPush(
                worker, identity, clock, examples, minibatches, gradient, base, serial, number_of(weight)
            )
            self.pieces[group].shard.push(arrived)
        elif kind == CLAIM:
            self._reply(worker, reply(CLAIMED, self.first.shard.claim(worker, numbers[0]), numbers[1]))
        elif kind == PASS:
            self.first.shard.pass_by(worker, numbers[0])
        elif kind == CLOCK:
            group, clock, heard = numbers[:3]
            self.pieces[group].shard.set_clock(worker, clock)
            self.lost = max(self.lost, heard - self.begun_at[group])
        elif kind == LEAVE:
            self._leave(worker)

    def _fetch(self, worker: int, group: int, min_clock: int, serial: int) -> None:
        answer = self.answered.get((worker, group))
        if answer is not None and answer[0] == serial:
            self._send_version(worker, group, *answer[1:])
        else:
            self.fetching[worker, group] = min_clock, serial, self.pieces[group].shard.last_of.get(worker, 0)

    def _leave(self, worker: int) -> None:
        for piece in self.pieces.values():
            piece.shard.leave(worker)

    def _forget(self, worker: int, channel: Channel | None) -> None:
        """A worker's connection closed: nobody waits for its clock, its version is free, its last pushes count."""
        if self.channels.get(worker) is not channel:
            return  # it has come back on another
        self._leave(worker)
        self._let_go(worker, channel)
        self.channels.pop(worker, None)
        self.missing.discard(worker)
        for group in self.pieces:
            self.fetching.pop((worker, group), None)
            self.answered.pop((worker, group), None)

    def _dismiss(self, worker: int) -> None:
        """Tell a worker that this is the end, and close its connection."""
        channel = self.channels.pop(worker, None)
        self._let_go(worker, channel)
        if channel is not None:
            self._refuse(channel, SHUT_DOWN)
            channel.finish(FAREWELL_S)

    def _give_up_the_dead(self) -> None:
        for worker in [worker for worker in self.missing if self._is_dead(worker)]:
            self._forget(worker, None)

    # -- answers --------------------------------------------------------------------------------------------------

    def _act(self) -> None:
        """One pass over each piece, and what can be answered then."""
        self._run_due()
        for piece in self.pieces.values():
            if piece.shard.ripe:
                for applied in piece.shard.apply(self._most_updates(piece)):
                    self._acknowledge(applied)
                self._run_due()
        ready = {group: (piece.shard.taken, piece.shard.floor) for group, piece in self.pieces.items()}
        for (worker, group), (min_clock, serial, after) in list(self.fetching.items()):
            taken, floor = ready[group]
            if after <= taken and min_clock <= floor:
                del self.fetching[worker, group]
                shard = self.pieces[group].shard
                row = shard.pin(worker)
                message = reply(SNAPSHOT, group, row, shard.examples, shard.version, serial)
                self.answered[worker, group] = serial, row, message
                self._send_version(worker, group, row, message)

    def _most_updates(self, piece: GroupSlice) -> int | None:
        """How many updates share the next pass over a piece. One, where a pass would read everything again for each:
        then no worker waits for pushes that came after its own, and those that came together do not stay together."""
        limit = self._updates_until_due() if piece is self.first else None
        return limit if piece.shard.config.update.shares_passes else 1

    def _updates_until_due(self) -> int | None:
        """How many updates may share a pass before an action is due."""
        return min((version - self.first.shard.version for version, _ in self.waiting), default=None)

    def _run_due(self) -> None:
        if not self.waiting:
            return
        shard = self.first.shard
        due = [action for version, action in self.waiting if version <= shard.version]
        self.waiting = [(version, action) for version, action in self.waiting if version > shard.version]
        for action in due:
            action(shard)

    def _acknowledge(self, applied: AppliedPush) -> None:
        push = applied.push
        self._reply(push.worker, reply(ACKNOWLEDGED, push.serial, applied.version, applied.staleness))

    def _reply(self, worker: int, message: bytes) -> None:
        with suppress(PeerLost):  # a dead worker is the coordinator's business
            if worker in self.channels:
                self.channels[worker].send(message)

    def _end(self) -> None:
        for channel in self.channels.values():
            self._refuse(channel, SHUT_DOWN)
            channel.finish(FAREWELL_S)
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]  # all of them are sockets
        self.alarm.close()
        self.selector.close()
        self.ended = True
