"""A worker's side of a parameter store whose shards are other processes, whatever carries the vectors.

A shard may die and come back: its worker connects again, says who it is, and asks again for whatever it has no answer
to. Its gradients lie in their slots until every shard has acknowledged them.
"""

import itertools
import threading
import time
from abc import abstractmethod
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from trainers.errors import PeerLost, StoreClosed
from trainers.links.channel import SocketChannel
from trainers.links.handle import Handle
from trainers.links.meter import BYTES, Meter
from trainers.links.tcp import Wire
from trainers.links.waiting import wait_flag, waiting
from trainers.parameter_server.groups import parts
from trainers.parameter_server.pending import Acknowledgements, PendingFetch, PendingPush
from trainers.parameter_server.protocol import Fetched, ParameterStore, Push
from trainers.parameter_server.push_identity import LONGEST_DELAY
from trainers.parameter_server.wire_format import (
    ACKNOWLEDGED,
    CLAIM,
    CLAIMED,
    CLOCK,
    CLOSED,
    FETCH,
    JOIN,
    JOINED,
    LEAVE,
    PASS,
    REPLY,
    SNAPSHOT,
    request,
)

Channel = TypeVar("Channel", SocketChannel, Wire)

MOST_UNHEARD = 128
"""Pushes that may be under way at once: neither side's socket is filled while the other does not read its own."""

RETURN_S = 60.0
"""How long a worker waits for a shard that died to come back."""

PATIENCE_S = 5.0
"""After such a silence a worker asks again, and then after twice as many each time."""

WHY_CLOSED = ("was shut down", "has no room for another worker", "has forgotten this worker")


class SlottedStore(ParameterStore, Generic[Channel]):
    """Gradients leave from slots, each free again once every shard has acknowledged what was pushed from it."""

    reads_slots: ClassVar[bool] = False
    """Whether shards read the slots where they lie, in float32, so that no push travels in fewer bytes."""

    def __init__(self, worker: int, shards: Sequence[slice], slots: Tensor, groups: Sequence[slice]) -> None:
        self.worker = worker
        self.channels: dict[int, Channel] = {}
        self.parts = [parts(cut, groups) for cut in shards]  # of each shard: group -> its part of the vector
        self.holders: dict[int, list[int]] = defaultdict(list)  # group -> shards that hold a part of it
        for shard, held in enumerate(self.parts):
            for group in held:
                self.holders[group].append(shard)
        self.slots = slots  # (num_slots, P)
        self.params = torch.zeros(shards[-1].stop)  # untouched, and so no memory, where versions are read in place
        self.taken: int | None = None
        self.left: set[int] = set()  # groups that were not pushed from the slot that is taken
        self.serials = itertools.count(1)
        self.sent: dict[int, PendingPush] = {}  # serial -> what is not acknowledged
        self.asking: dict[int, PendingFetch] = {}  # group -> its last fetch
        self.claiming: tuple[int, int] | None = None  # serial and clock of the last `claim`
        self.granted: bool | None = None  # the answer to it
        self.passed: int | None = None  # clock of the last step in which this worker got no place
        self.joined: set[int] = set()  # shards that know this worker, or did before they died
        self.has_left = False
        self.acknowledged = Acknowledgements(len(self.holders))
        # (shard, group) -> versions at the last fetches, the newest last; this worker's clock; the newest version
        self.seen: dict[tuple[int, int], deque[int]] = defaultdict(lambda: deque(maxlen=LONGEST_DELAY + 1))
        self.clocks: dict[tuple[int, int], int] = defaultdict(int)
        self.heard: dict[tuple[int, int], int] = defaultdict(int)
        self.silences = [0] * len(shards)  # since each shard's last word
        self.closed = threading.Event()
        self.clock_at_start = 0
        self.updates = 0
        self.waited_s = 0.0
        self.meter = Meter()

    @abstractmethod
    def _connect(self, shard: int) -> tuple[Channel, int]:
        """A new connection to a shard, and the token that it asks for; one attempt, or until it listens if this is the
        first.

        Raises:
            PeerLost: It does not listen.
        """

    @abstractmethod
    def _hand_over(self, shard: int, sent: PendingPush, message: bytes) -> None:
        """Have a shard that holds a part of the push's group take that of the slot.

        Raises:
            PeerLost: It is gone.
        """

    @abstractmethod
    def _take_version(self, shard: int, group: int, row: int) -> None:
        """Take note of a shard's answer to `fetch`.

        Raises:
            PeerLost: It is gone.
        """

    def _fetched(self) -> Tensor:
        """(P,) once every shard has answered."""
        return self.params

    @property
    def staleness(self) -> dict[int, int]:
        return dict(self.acknowledged.staleness)

    @property
    def group_staleness(self) -> list[dict[int, int]]:
        return [dict(counts) for counts in self.acknowledged.by_group]

    @property
    def applied(self) -> list[Push]:
        return self.acknowledged.taken()

    def fetch(self, min_clock: int, group: int = 0) -> Handle[Fetched]:
        holders = self.holders[group]
        ask = self.asking[group] = PendingFetch(next(self.serials), min_clock, set(holders))
        for shard in holders:
            self._send(shard, request(FETCH, min_clock, group, ask.serial))

        def finish() -> Fetched:
            waited_s = self.waited_s
            for shard in holders:
                while shard in ask.missing:
                    self._hear(shard)
            self.meter.count_fetch(self._width(group), self.waited_s - waited_s, ask.latency_s)
            examples, updates = zip(*ask.answers, strict=True)
            return Fetched(self._fetched(), min(examples), min(updates))

        return Handle(finish)

    def claim(self, clock: int) -> Handle[bool]:
        self.claiming, self.granted = (next(self.serials), clock), None
        self._send(0, request(CLAIM, clock, self.claiming[0]))

        def finish() -> bool:
            while self.granted is None:
                self._hear(0)
            self.claiming = None
            if not self.granted:
                self.passed = clock
                for shard in range(1, len(self.channels)):
                    self._send(shard, request(PASS, clock))
            return self.granted

        return Handle(finish)

    def gradient_buffer(self) -> Tensor:
        while not (free := self._free_slots()):
            self._hear_oldest()
        self.taken, self.left = free[0], set(self.holders)
        return self.slots[self.taken]

    def push(self, push: Push) -> Handle[None]:
        slot, group = self.taken, push.identity.group
        assert slot is not None, "push without gradient_buffer"
        assert group in self.left, "a group is pushed once from a buffer"
        self.left.discard(group)
        while len(self.sent) >= MOST_UNHEARD:
            self._hear_oldest()
        holders = self.holders[group]
        bases = {shard: self._version_of(shard, group, push.delay) for shard in holders}
        laid = {shard: push.lay_down(self.slots[slot], self.parts[shard][group]) for shard in holders}
        compressed = {shard: message for shard, message in laid.items() if message is not None}
        serial = next(self.serials)
        sent = self.sent[serial] = PendingPush(push, slot, bases, set(holders), compressed)
        widths = [self._width_on(shard, group) for shard in holders]
        self.meter.count_push(BYTES * sum(widths) if self.reads_slots else sum(map(push.num_bytes, widths)))
        for shard in holders:
            try:
                self._repeat_push(shard, serial)
            except PeerLost as error:
                self._return_to(shard, error)

        def finish() -> None:
            while sent.missing:
                self._hear_push(min(sent.missing))

        return Handle(finish)

    def settle(self) -> None:
        while self.sent:
            self._hear_oldest()

    def leave(self) -> None:
        self.settle()
        self.has_left = True
        for shard in self.channels:
            self._send(shard, request(LEAVE))

    def close(self) -> None:
        self.closed.set()
        for channel in list(self.channels.values()):
            channel.close()

    def _free_slots(self) -> list[int]:
        busy = {sent.slot for sent in self.sent.values()}
        return [slot for slot in range(len(self.slots)) if slot not in busy]

    def _width(self, group: int) -> int:
        return sum(self._width_on(shard, group) for shard in self.holders[group])

    def _width_on(self, shard: int, group: int) -> int:
        part = self.parts[shard][group]
        width: int = part.stop - part.start
        return width

    def _version_of(self, shard: int, group: int, delay: int) -> int:
        """What the fetch before the last `delay` ones gave."""
        seen = self.seen[shard, group]
        return seen[max(-1 - delay, -len(seen))]

    # -- connections ----------------------------------------------------------------------------------------------

    def _join_all(self) -> None:
        """Connect to every shard. The clock begins where the slowest live worker's is, on the shard where that is
        furthest; the others are told, so that none of them waits for this worker to get there."""
        try:
            for shard in range(len(self.parts)):
                self._return_to(shard)
        except BaseException:
            self.close()
            raise
        self.clock_at_start = max(self.clocks.values())
        for (shard, group), clock in list(self.clocks.items()):
            self.clocks[shard, group] = self.clock_at_start
            if clock < self.clock_at_start:
                self._send(shard, request(CLOCK, group, self.clock_at_start, 0))

    def _return_to(self, shard: int, error: PeerLost | None = None) -> None:
        """Connect, again where the connection was lost, and ask for what is owing.

        Raises:
            StoreClosed: The shard said that it ends, or did not come back in time.
        """
        if shard in self.joined:
            with suppress(PeerLost, TimeoutError):
                while True:  # what it said before it was gone
                    self._take(shard, self.channels[shard].receive())
            self.channels[shard].close()
        with wait_flag():
            self._connect_again(shard, error)

    def _connect_again(self, shard: int, error: PeerLost | None) -> None:
        """Until the shard listens."""
        deadline = time.monotonic() + RETURN_S
        while True:
            if self.closed.is_set():
                raise StoreClosed("the connection to the shards was closed") from error
            try:
                again = shard in self.joined
                self._join(shard)
                if again:
                    self._go_on(shard)
                return
            except PeerLost as lost:
                if shard in self.channels:
                    self.channels[shard].close()
                if time.monotonic() > deadline:
                    raise StoreClosed(f"{lost}, and did not come back within {RETURN_S:g} s") from lost
            self.closed.wait(0.005)

    def _join(self, shard: int) -> None:
        channel, token = self._connect(shard)
        self.channels[shard] = channel
        channel.set_timeout(PATIENCE_S)
        message, owing = request(JOIN, self.worker, len(self.slots), token), set(self.parts[shard])
        channel.send(message)
        while owing:
            try:
                kind, group, clock, version, *_ = REPLY.unpack(channel.receive())
            except TimeoutError:
                channel.send(message)
                continue
            if kind == CLOSED:
                raise StoreClosed(f"shard {shard} {WHY_CLOSED[group]}")
            if kind == JOINED:
                owing.discard(group)
                if shard not in self.joined:
                    self.clocks[shard, group] = clock
                    self.seen[shard, group].append(version)
        self.joined.add(shard)
        if self.closed.is_set():
            channel.close()  # `close` may have missed it

    def _go_on(self, shard: int) -> None:
        """Tell a shard that has come back what it may not know."""
        channel = self.channels[shard]
        for group in self.parts[shard]:
            channel.send(request(CLOCK, group, self.clocks[shard, group], self.heard[shard, group]))
        if self.passed is not None and shard > 0:
            channel.send(request(PASS, self.passed))
        if self.has_left:
            channel.send(request(LEAVE))
        self._ask_again(shard)

    def _ask_again(self, shard: int) -> None:
        for serial, sent in self.sent.items():  # before the fetches, which wait for them
            if shard in sent.missing:
                self._repeat_push(shard, serial)
        for group, ask in self.asking.items():
            if shard in ask.missing:
                self.channels[shard].send(request(FETCH, ask.min_clock, group, ask.serial))
        if self.claiming is not None and shard == 0:
            serial, clock = self.claiming
            self.channels[0].send(request(CLAIM, clock, serial))

    def _repeat_push(self, shard: int, serial: int) -> None:
        sent = self.sent[serial]
        self._hand_over(shard, sent, sent.message(serial, shard))

    def _send(self, shard: int, message: bytes) -> None:
        try:
            self.channels[shard].send(message)
        except PeerLost as error:
            self._return_to(shard, error)

    # -- answers --------------------------------------------------------------------------------------------------

    def _hear_oldest(self) -> None:
        """Wait for a shard that still owes an acknowledgement."""
        self._hear_push(min(next(iter(self.sent.values())).missing))

    def _hear_push(self, shard: int) -> None:
        waited_s = self.waited_s
        self._hear(shard)
        self.meter.count_push_wait(self.waited_s - waited_s)

    def _hear(self, shard: int) -> None:
        """Wait for one word of a shard."""
        with waiting(self):
            try:
                with wait_flag():
                    self._take(shard, self.channels[shard].receive())
                self.silences[shard] = 0
            except TimeoutError:
                self.silences[shard] += 1
                if self.silences[shard].bit_count() == 1:  # 1, 2, 4, 8 ...
                    with suppress(PeerLost):  # told by the next answer
                        self._ask_again(shard)
            except PeerLost as error:
                self._return_to(shard, error)

    def _take(self, shard: int, message: bytes) -> None:
        kind, *numbers = REPLY.unpack(message)
        if kind == SNAPSHOT:
            group, row, examples, version, serial = numbers
            self._take_version(shard, group, row)
            ask = self.asking[group]
            if ask.serial == serial and shard in ask.missing:
                ask.answered(shard, examples, version)
                self.seen[shard, group].append(version)
                self.heard[shard, group] = version
        elif kind == CLAIMED:
            if self.claiming is not None and self.claiming[0] == numbers[1]:
                self.granted = bool(numbers[0])
        elif kind == ACKNOWLEDGED:
            self._acknowledge(shard, *numbers[:3])
        elif kind == CLOSED:
            raise StoreClosed(f"shard {shard} {WHY_CLOSED[numbers[0]]}")

    def _acknowledge(self, shard: int, serial: int, version: int, stale: int) -> None:
        sent = self.sent.get(serial)
        if sent is None or shard not in sent.missing:
            return  # told before
        group = sent.push.identity.group
        self.clocks[shard, group] = max(self.clocks[shard, group], sent.push.clock)
        self.heard[shard, group] = max(self.heard[shard, group], version)
        if shard == self.holders[group][0]:
            sent.stale = stale
            if group == 0:
                self.updates = version
        sent.missing.discard(shard)
        if not sent.missing:
            del self.sent[serial]
            self.meter.count_acknowledged(sent.age_s)
            self.acknowledged.add(sent.push, sent.stale)
