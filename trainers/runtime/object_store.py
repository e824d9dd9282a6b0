"""The parameter store of workers and shards on different nodes, through Ray's object store.

A vector is put into the store of its sender's node, one flat buffer for a shard's slice or a group's part of it, and
its receiver's raylet pulls it; the workers of a node that fetch the same version share one copy of it. Messages are
calls of the shard's actor; workers are never called. A worker calls `tell` to send something, and keeps one call of
`listen` open, which returns what the shard has to send. So nothing but Ray's own ports is needed between the nodes.

Ray may run calls out of order, so each wire numbers its own. A call that fails ends the wire: the worker connects
again and repeats whatever was not answered, as on every transport, and the shard applies each push identity once. A
shard counts as lost when Ray reports that its actor died, a worker when it has had no call open for some time.
"""

import itertools
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import ray
import torch
from torch import Tensor

from trainers.errors import PeerLost
from trainers.links.tcp import Wire
from trainers.parameter_server.groups import GroupSlice
from trainers.parameter_server.tcp import WiredServer, WiredStore
from trainers.parameter_server.wire_format import REPLY
from trainers.runtime.cluster import NAMESPACE

Payload = list[Any]
"""What accompanies a message: nothing, or one vector: a reference to it, or where it is small the vector itself."""

StoreMessage = tuple[bytes, Payload]

SMALL_BYTES = 64 * 1024
"""A vector up to this size travels in the call, where the object store would only cost time."""

POLL_S = 1.0
"""How long a call of `listen` stays open when there is nothing to send."""

SILENCE_S = 5.0
"""A worker that has had no call open for so long counts as lost."""

RETRY_S = 0.05
"""Between two attempts to reach a shard that does not answer."""


def payload_of(vector: Tensor) -> Payload:
    """A copy of (n,) float32 for a call."""
    values = vector.detach().numpy()
    return [values.copy() if values.nbytes <= SMALL_BYTES else ray.put(values)]


def copy_payload(vector: Tensor, what: Payload) -> None:
    """Copy a payload into (n,) float32: memory of the object store is shared and must not be written.

    Raises:
        PeerLost: The sender died before the vector was here.
    """
    (value,) = what
    try:
        if isinstance(value, ray.ObjectRef):
            ray.wait([value])  # `get` alone keeps all other threads from the store until the vector is here
        values = ray.get(value) if isinstance(value, ray.ObjectRef) else value
    except ray.exceptions.RayError as error:
        raise PeerLost(f"a vector was lost with its sender: {type(error).__name__}") from error
    np.copyto(vector.numpy(), values)


class WorkerWire(Wire):
    """A worker's end."""

    def __init__(self, shard: Any, peer: str) -> None:
        """shard: the handle of an actor that has a `WireHub`, as `tell` and `listen`."""
        self.shard, self.peer = shard, peer
        self.wire = secrets.randbits(62)
        self.numbers = itertools.count()
        self.unconfirmed: deque[Any] = deque()  # calls that may not have run
        self.arrived: SimpleQueue[StoreMessage | None] = SimpleQueue()  # None: there will be no more
        self.patience_s: float | None = None
        self.payload: Payload = []
        self.over = False
        threading.Thread(target=self._listen, name=f"from {peer}", daemon=True).start()

    def send(self, message: bytes, vector: Tensor | None = None) -> None:
        self._tell(message, [] if vector is None else payload_of(vector))

    def receive(self) -> bytes:
        try:
            letter = self.arrived.get(timeout=self.patience_s)
        except Empty:
            raise TimeoutError(f"{self.peer} says nothing") from None
        if letter is None:
            self.arrived.put(None)  # for who asks again
            raise PeerLost(f"{self.peer} is gone")
        message, self.payload = letter
        return message

    def receive_into(self, vector: Tensor) -> None:
        what, self.payload = self.payload, []
        copy_payload(vector, what)

    def set_timeout(self, seconds: float) -> None:
        self.patience_s = seconds

    def finish(self, timeout_s: float) -> None:
        self.close()

    def close(self) -> None:
        if not self.over:
            self.over = True
            self._tell(b"", [])
            self.arrived.put(None)

    def _tell(self, message: bytes, what: Payload) -> None:
        call = self.shard.tell.options(concurrency_group="tell")
        self.unconfirmed.append(call.remote(self.wire, next(self.numbers), message, what))

    def _listen(self) -> None:
        over = False
        try:
            while not over:
                call = self.shard.listen.options(concurrency_group="listen")
                letters, over = ray.get(call.remote(self.wire))
                for letter in letters:
                    self.arrived.put(letter)
                self._check()
        except Exception:  # the shard died or is not reached, a call was lost, or this process leaves Ray
            self.over = True
        self.arrived.put(None)

    def _check(self) -> None:
        """Forget the calls that have run; raise the error of one that failed."""
        while self.unconfirmed and ray.wait([self.unconfirmed[0]], timeout=0)[0]:
            ray.get(self.unconfirmed.popleft())


class ShardWire(Wire):
    """The shard's end, inside its actor."""

    peer = "a worker"

    def __init__(self) -> None:
        self.news = threading.Condition()
        self.early: dict[int, StoreMessage] = {}  # by number
        self.next = 0
        self.arrived: deque[StoreMessage] = deque()
        self.leaving: list[StoreMessage] = []
        self.over = False
        self.open = 0  # calls
        self.open_s = time.monotonic()  # when one was open last
        self.payload: Payload = []

    def send(self, message: bytes, vector: Tensor | None = None) -> None:
        self.send_stored(message, [] if vector is None else payload_of(vector))

    def send_stored(self, message: bytes, what: Payload) -> None:
        """`send`, of a vector that is in the store already."""
        with self.news:
            self.leaving.append((message, what))
            self.news.notify_all()

    def receive(self) -> bytes:
        with self.news:
            while not self.arrived:
                if self.over or self.is_silent:
                    raise PeerLost(f"{self.peer} is gone")
                self.news.wait(POLL_S)
            message, self.payload = self.arrived.popleft()
        if not message:
            raise PeerLost(f"{self.peer} has closed")
        return message

    def receive_into(self, vector: Tensor) -> None:
        what, self.payload = self.payload, []
        copy_payload(vector, what)

    def set_timeout(self, seconds: float) -> None:
        """A worker may be silent as long as it lives."""

    def finish(self, timeout_s: float) -> None:
        with self.news:
            self.over = True
            self.news.notify_all()
            self.news.wait_for(lambda: not (self.leaving and self.open), timeout_s)

    def close(self) -> None:
        with self.news:
            self.over = True
            self.news.notify_all()

    @property
    def is_silent(self) -> bool:
        """Whether its worker counts as dead."""
        return time.monotonic() - self.open_s > SILENCE_S

    def deliver(self, number: int, letter: StoreMessage) -> None:
        """The worker's message with this number has arrived."""
        with self.news:
            self.early[number] = letter
            while self.next in self.early:
                self.arrived.append(self.early.pop(self.next))
                self.next += 1
            self.news.notify_all()

    def poll(self) -> tuple[list[StoreMessage], bool]:
        """What there is to send, as soon as there is something; and whether that was the last."""
        with self.news:
            self.open += 1
            self.open_s = time.monotonic()
            self.news.wait_for(lambda: self.leaving or self.over, POLL_S)
            self.open -= 1
            self.open_s = time.monotonic()
            letters, self.leaving = self.leaving, []
            self.news.notify_all()
            return letters, self.over


class WireHub:
    """The wires of one shard. An actor that has it passes `tell` and `listen` on to it."""

    def __init__(self, take: Callable[[Wire], None]) -> None:
        """take: called with each new wire."""
        self.take = take
        self.lock = threading.Lock()
        self.wires: dict[int, ShardWire] = {}
        self.ended: set[int] = set()

    def tell(self, wire: int, number: int, message: bytes, what: Payload) -> None:
        """A message from a worker."""
        found = self._find(wire)
        if found is not None:
            found.deliver(number, (message, what))

    def listen(self, wire: int) -> tuple[list[StoreMessage], bool]:
        """What there is to send to a worker, and whether that was the last."""
        found = self._find(wire)
        if found is None:
            return [], True
        letters, over = found.poll()
        if over:
            with self.lock:
                self.wires.pop(wire, None)
                self.ended.add(wire)
        return letters, over

    def _find(self, wire: int) -> ShardWire | None:
        """The wire of a number, a new one at first; None if it has ended."""
        with self.lock:
            if wire in self.ended:
                return None
            if wire in self.wires:
                return self.wires[wire]
            for old in [name for name, one in self.wires.items() if one.over and one.is_silent]:
                del self.wires[old]  # whose worker has died
                self.ended.add(old)
            found = self.wires[wire] = ShardWire()
        self.take(found)
        return found


class ObjectStore(WiredStore):
    """A worker's side. `find` gives the actor of a shard, as it is now, by its index."""

    def __init__(
        self, find: Callable[[int], Any], worker: int, shards: Sequence[slice], num_slots: int, groups: Sequence[slice]
    ) -> None:
        self.find = find
        super().__init__(worker, shards, torch.zeros(num_slots, shards[-1].stop), groups)
        self._join_all()

    def _connect(self, shard: int) -> tuple[WorkerWire, int]:
        if shard in self.joined:
            self.closed.wait(RETRY_S)
        return WorkerWire(self.find(shard), f"shard {shard}"), ObjectShardServer.token


class ObjectShardServer(WiredServer):
    """A shard's side. A version is put into the store once, however many workers fetch it."""

    def __init__(self, pieces: dict[int, GroupSlice]) -> None:
        super().__init__(None, pieces)
        self.versions: dict[int, tuple[int, Payload]] = {}  # group -> the last version that was fetched, in the store
        self.wire_hub = WireHub(self.take)

    def _send_version(self, worker: int, group: int, row: int, message: bytes) -> None:
        wire = self.channels[worker]
        assert isinstance(wire, ShardWire)
        version = REPLY.unpack(message)[4]
        if self.versions.get(group, (-1, []))[0] != version:
            self.versions[group] = version, payload_of(self.pieces[group].shard.ring[row])
        wire.send_stored(message, self.versions[group][1])


def named(prefix: str) -> Callable[[int], Any]:
    """Finds a run's shards by their actors' names, `<prefix>/<index>` and, of those that took the place of a dead one,
    `<prefix>/<index>-<number>`."""

    def find(index: int) -> Any:
        pattern = re.compile(rf"{re.escape(prefix)}/{index}(?:-(\d+))?")
        known = [e["name"] for e in ray.util.list_named_actors(all_namespaces=True) if e["namespace"] == NAMESPACE]
        numbers = {int(match[1] or 0): match[0] for name in known if (match := pattern.fullmatch(name))}
        try:
            return ray.get_actor(numbers[max(numbers)], NAMESPACE)
        except ValueError as error:  # there is none, or it died in between
            raise PeerLost(f"there is no shard {index}") from error

    return find
