"""Point-to-point messages of workers on one node: vectors in mapped slots, notes about them through a socket a pair."""

import struct
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from trainers.transport.doorbell import SocketDoorbell
from trainers.transport.mapped import MappedFile
from trainers.transport.messages import Messages
from trainers.transport.protocols import Handle, Traffic, done

SLOTS = 2
"""Vectors to one peer that may wait to be taken."""

NOTE = struct.Struct("<qq")  # slot, elements in it; TAKEN where the reader gives it back
TAKEN = -1


class SharedMemoryMessages(Messages):
    """Messages among the workers that share the folder of a lane.

    bells: to the others, in the order of their ranks.
    """

    def __init__(self, folder: Path, rank: int, bells: Sequence[SocketDoorbell], traffic: Traffic) -> None:
        self.rank, self.size = rank, len(bells) + 1
        self.nodes = (0,) * self.size
        self.traffic = traffic
        others = [k for k in range(self.size) if k != rank]
        self.posts = {k: Post(folder, rank, k, bell) for k, bell in zip(others, bells, strict=True)}

    def close(self) -> None:
        for post in self.posts.values():
            post.bell.close()

    def _send(self, vector: Tensor, to: int) -> Handle[None]:
        self.posts[to].send(vector)
        return done(None)

    def _receive(self, into: Tensor, source: int) -> Handle[None]:
        return Handle(lambda: self.posts[source].receive(into))


class Post:
    """The way to one peer and back."""

    def __init__(self, folder: Path, rank: int, peer: int, bell: SocketDoorbell) -> None:
        self.outbox, self.inbox = folder / f"{rank}-to-{peer}", folder / f"{peer}-to-{rank}"
        self.bell = bell
        self.free = deque(range(SLOTS))
        self.arrived: deque[tuple[int, int]] = deque()  # slot of the inbox, elements
        self.files: dict[tuple[Path, int, int], MappedFile] = {}

    def send(self, vector: Tensor) -> None:
        """Lay down a copy, once a slot is free."""
        while not self.free:
            self._hear()
        slot = self.free.popleft()
        self._slot(self.outbox, slot, vector.numel()).copy_(vector)
        self.bell.ring(NOTE.pack(slot, vector.numel()))

    def receive(self, into: Tensor) -> None:
        """Take the next vector and give its slot back."""
        while not self.arrived:
            self._hear()
        slot, numel = self.arrived.popleft()
        assert numel == into.numel(), f"{self.bell.peer} sent {numel} elements, not {into.numel()}"
        into.copy_(self._slot(self.inbox, slot, numel))
        self.bell.ring(NOTE.pack(slot, TAKEN))

    def _hear(self) -> None:
        slot, numel = NOTE.unpack(self.bell.answer())
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
