"""Point-to-point messages of workers on one node: vectors in mapped slots, notes about them through a socket a pair."""

import struct
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from trainers.collectives.messages import Messages
from trainers.links.channel import SocketChannel
from trainers.links.handle import Handle, done
from trainers.links.mapped import MappedFile
from trainers.links.meter import Meter

SLOTS = 2
"""Vectors to one peer that may wait to be taken."""

NOTE = struct.Struct("<qq")  # slot, elements in it; TAKEN where the reader gives it back
TAKEN = -1


class SharedMemoryMessages(Messages):
    """Messages among the workers that share the folder of a lane.

    channels: to the others, in the order of their ranks.
    """

    def __init__(self, folder: Path, rank: int, channels: Sequence[SocketChannel], meter: Meter) -> None:
        self.rank, self.size = rank, len(channels) + 1
        self.nodes = (0,) * self.size
        self.meter = meter
        others = [k for k in range(self.size) if k != rank]
        self.mailboxes = {k: PeerMailbox(folder, rank, k, channel) for k, channel in zip(others, channels, strict=True)}

    def close(self) -> None:
        for mailbox in self.mailboxes.values():
            mailbox.channel.close()

    def _send(self, vector: Tensor, to: int) -> Handle[None]:
        self.mailboxes[to].send(vector)
        return done(None)

    def _receive(self, into: Tensor, source: int) -> Handle[None]:
        return Handle(lambda: self.mailboxes[source].receive(into))


class PeerMailbox:
    """The way to one peer and back."""

    def __init__(self, folder: Path, rank: int, peer: int, channel: SocketChannel) -> None:
        self.outbox, self.inbox = folder / f"{rank}-to-{peer}", folder / f"{peer}-to-{rank}"
        self.channel = channel
        self.free = deque(range(SLOTS))
        self.arrived: deque[tuple[int, int]] = deque()  # slot of the inbox, elements
        self.files: dict[tuple[Path, int, int], MappedFile] = {}

    def send(self, vector: Tensor) -> None:
        """Lay down a copy, once a slot is free."""
        while not self.free:
            self._hear()
        slot = self.free.popleft()
        self._slot(self.outbox, slot, vector.numel()).copy_(vector)
        self.channel.send(NOTE.pack(slot, vector.numel()))

    def receive(self, into: Tensor) -> None:
        """Take the next vector and give its slot back."""
        while not self.arrived:
            self._hear()
        slot, numel = self.arrived.popleft()
        assert numel == into.numel(), f"{self.channel.peer} sent {numel} elements, not {into.numel()}"
        into.copy_(self._slot(self.inbox, slot, numel))
        self.channel.send(NOTE.pack(slot, TAKEN))

    def _hear(self) -> None:
        slot, numel = NOTE.unpack(self.channel.receive())
        if numel == TAKEN:
            self.free.append(slot)
        else:
            self.arrived.append((slot, numel))

    def _slot(self, box: Path, slot: int, numel: int) -> Tensor:
        """The first elements of a slot's mapped file, of which there is one for each power of two."""
        capacity = 1 << (numel - 1).bit_length()
        key = box, slot, capacity
        if key not in self.files:
            self.files[key] = MappedFile(box.with_name(f"{box.name}-{slot}-{capacity}"), 1, capacity)
        return self.files[key].row(0)[:numel]
