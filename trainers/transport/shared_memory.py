"""Collectives of workers on one node: vectors in mapped files, met at a barrier of sockets.

Nothing is sent: a worker reads the others' parts where they lie, reduces its own 1/K of them (paper 1, section 4.1)
and writes its 1/K of the result where all of them see it.
"""

import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from trainers.errors import PeerLost
from trainers.optim.update import Gradient
from trainers.transport.canonical import Node, TreeSum
from trainers.transport.doorbell import SocketDoorbell, connect, listen
from trainers.transport.mapped import MappedFile
from trainers.transport.protocols import Collectives, Handle, Reduction

JOIN_TIMEOUT_S = 60.0
MEET = struct.Struct("<qq")  # number of the meeting, signal


class SharedMemoryCollectives(Collectives):
    """K workers that share the folder of one generation."""

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        self.folder = folder
        self.rank = rank
        self.size = size
        self.meetings = 0
        self.subgroups = 0
        self.files: dict[str, MappedFile] = {}
        self.peers = meet_peers(folder, rank, size)

    def replicated(self, name: str, numel: int) -> Tensor:
        return self._file(f"all-{name}", 1, numel).row(0)

    def parts(self, reduction: Reduction) -> list[Tensor]:
        nodes = reduction.nodes(self.rank)
        return [self._part(reduction, self.rank, i) for i in range(len(nodes))]

    def barrier(self, signal: int = 0) -> Handle[int]:
        self.meetings += 1
        meeting = self.meetings
        message = MEET.pack(meeting, signal)
        for peer in self.peers:
            peer.ring(message)
        return Handle(lambda: self._meet(meeting, signal))

    def reduce_canonical(self, reduction: Reduction, parts: Sequence[Tensor]) -> Handle[Gradient]:
        arrived = self.barrier()
        mine = self.span(reduction.numel)

        def ordered() -> Gradient:
            arrived.wait()
            found: dict[Node, Tensor] = {}
            for k in range(self.size):
                for i, node in enumerate(reduction.nodes(k)):
                    found[node] = self._part(reduction, k, i)[mine]
            return TreeSum(reduction.num_virtual, found)

        return Handle(ordered)

    def all_gather(self, vector: Tensor, signal: int = 0) -> Handle[int]:
        return self.barrier(signal)  # the spans were written where all of them see them

    def all_to_all(self, send: Sequence[Tensor], receive: Sequence[Tensor]) -> Handle[None]:
        sizes = torch.tensor([tensor.numel() for tensor in send])
        outbox = self._file(f"box-{self.rank}-{self.meetings}", 1, int(sizes.sum())).row(0)
        names = [f"box-{k}-{self.meetings}" for k in range(self.size)]
        torch.cat([tensor.reshape(-1) for tensor in send], out=outbox)
        # What I sent to each, told in the first meeting, is where the others find theirs.
        offsets = self._tell(torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]))
        arrived = self.barrier()

        def finish() -> None:
            arrived.wait()
            for k, own in enumerate(receive):
                start, stop = int(offsets[k][self.rank]), int(offsets[k][self.rank + 1])
                whole = self._file(names[k], 1, int(offsets[k][-1])).row(0)
                own.copy_(whole[start:stop].view_as(own))
            self.barrier().wait()  # until all have read, nobody may take the box away
            for name in names:
                self.files.pop(name, None)
            (self.folder / names[self.rank]).unlink()

        return Handle(finish)

    def broadcast(self, vector: Tensor, root: int) -> Handle[None]:
        """Through one mapped vector that stays, where `all_to_all` would map and remove one for each worker."""
        shared = self._file(f"broadcast-{vector.numel()}", 1, vector.numel()).row(0)
        if self.rank == root:
            shared.copy_(vector)
        arrived = self.barrier()

        def finish() -> None:
            arrived.wait()
            vector.copy_(shared)
            self.barrier().wait()  # until all have read, nobody may write the next one

        return Handle(finish)

    def subgroup(self, ranks: Sequence[int]) -> "SharedMemoryCollectives | None":
        self.subgroups += 1
        folder = self.folder / f"sub-{self.subgroups}-{'-'.join(map(str, ranks))}"
        folder.mkdir(exist_ok=True)
        if self.rank not in ranks:
            return None
        return SharedMemoryCollectives(folder, list(ranks).index(self.rank), len(ranks))

    def close(self) -> None:
        for peer in self.peers:
            peer.close()

    def _meet(self, meeting: int, signal: int) -> int:
        start = time.perf_counter()
        for peer in self.peers:
            number, theirs = MEET.unpack(peer.answer())
            if number != meeting:
                raise PeerLost(f"{peer.peer} is at meeting {number}, this worker at {meeting}")
            signal = max(signal, theirs)
        self.waited_s += time.perf_counter() - start
        return signal

    def _tell(self, numbers: Tensor) -> list[Tensor]:
        """Everyone's `numbers` (K + 1,) int64, exchanged through the sockets."""
        message = numbers.numpy().tobytes()
        for peer in self.peers:
            peer.ring(message)
        told = [torch.frombuffer(bytearray(peer.answer()), dtype=torch.int64) for peer in self.peers]
        told.insert(self.rank, numbers)
        return told

    def _part(self, reduction: Reduction, rank: int, index: int) -> Tensor:
        rows = len(reduction.nodes(rank))
        return self._file(f"parts-{rank}-{reduction.num_virtual}", rows, reduction.numel).row(index)

    def _file(self, name: str, rows: int, numel: int) -> MappedFile:
        if name not in self.files:
            self.files[name] = MappedFile(self.folder / name, rows, numel)
        return self.files[name]


def meet_peers(folder: Path, rank: int, size: int, timeout_s: float = JOIN_TIMEOUT_S) -> list[SocketDoorbell]:
    """A connection to every other worker of the folder, in the order of their ranks.

    Raises:
        PeerLost: One of them did not come within `timeout_s`.
    """
    server = listen(folder / f"rank-{rank}")
    server.settimeout(timeout_s)
    found = {k: connect(folder / f"rank-{k}", f"worker {k}", timeout_s) for k in range(rank)}
    for peer in found.values():
        peer.ring(struct.pack("<q", rank))
    try:
        while len(found) < size - 1:
            bell = _accept(server)
            (k,) = struct.unpack("<q", bell.answer())
            bell.peer = f"worker {k}"
            found[k] = bell
    except TimeoutError:
        missing = [k for k in range(size) if k != rank and k not in found]
        raise PeerLost(f"workers {missing} did not come within {timeout_s:g} s") from None
    finally:
        server.close()
    return [found[k] for k in sorted(found)]


def _accept(server: socket.socket) -> SocketDoorbell:
    connection, _ = server.accept()
    connection.settimeout(None)
    return SocketDoorbell(connection, "a worker")
