"""A worker's side of a parameter store whose shards are other processes, whatever carries the vectors."""

import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from trainers.errors import PeerLost, StoreClosed
from trainers.transport.doorbell import SocketDoorbell
from trainers.transport.protocols import Fetched, Handle, ParameterStore, Push
from trainers.transport.store_messages import FETCH, LEAVE, PUSH, REPLY, SNAPSHOT, request
from trainers.transport.tcp import Line

Bell = TypeVar("Bell", SocketDoorbell, Line)


class SlottedStore(ParameterStore, Generic[Bell]):
    """Gradients leave from slots, each free again once every shard has acknowledged what was pushed from it."""

    def __init__(self, bells: Sequence[Bell], shards: Sequence[slice], slots: Tensor) -> None:
        self.bells: Sequence[Bell] = bells
        self.spans = shards
        self.slots = slots  # (num_slots, P)
        self.params = torch.zeros(shards[-1].stop)
        self.free = list(range(len(slots)))
        self.taken: int | None = None
        self.unacknowledged: dict[int, tuple[Push, set[int]]] = {}  # slot -> push, shards that have not applied it
        self.done: list[Push] = []
        self.counts: Counter[int] = Counter()
        self.examples: list[list[int]] = [[] for _ in shards]  # of each shard's answers to `fetch`
        self.waited_s = 0.0

    @abstractmethod
    def _hand_over(self, slot: int, message: bytes) -> None:
        """Have every shard take its slice of a slot."""

    @abstractmethod
    def _take_version(self, shard: int, row: int) -> None:
        """Copy a shard's answer to `fetch` into `params`."""

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
            for shard in range(len(self.spans)):
                while not self.examples[shard]:
                    self._hear(shard)
            return Fetched(self.params, min(seen.pop() for seen in self.examples))

        return Handle(finish)

    def gradient_buffer(self) -> Tensor:
        while not self.free:
            self._hear_oldest()
        self.taken = self.free[0]
        return self.slots[self.taken]

    def push(self, push: Push) -> Handle[None]:
        slot, self.taken = self.taken, None
        assert slot is not None, "push without gradient_buffer"
        self.free.remove(slot)
        self.unacknowledged[slot] = (push, set(range(len(self.spans))))
        i = push.identity
        numbers = slot, i.epoch, i.first, i.last, i.group, push.clock, push.examples, push.minibatches
        self._hand_over(slot, request(PUSH, *numbers))

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
            self._take_version(shard, slot_or_row)
            self.examples[shard].append(number)
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
