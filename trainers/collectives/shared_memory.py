"""Collectives of workers on one node: vectors in mapped files, or on the GPU that all share, and a barrier of sockets.

Nothing is sent: a worker reads the others' parts where they lie, reduces its own 1/K of them (paper 1, section 4.1)
and writes its 1/K of the result where all of them see it.
"""

import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from trainers.collectives.messages import ThreadLane
from trainers.collectives.protocol import Collectives
from trainers.collectives.reduction import ReducedSpan, Reduction
from trainers.collectives.reduction_tree import Node, TreeSum
from trainers.collectives.shared_messages import SharedMemoryMessages
from trainers.errors import PeerLost
from trainers.links.channel import SocketChannel, connect, listen
from trainers.links.device_rows import DeviceRows
from trainers.links.encoding import encoded
from trainers.links.handle import Handle
from trainers.links.mapped import MappedFile
from trainers.links.waiting import waiting
from trainers.optim.gradient import Gradient
from trainers.optim.slices import aligned

CPU = torch.device("cpu")
JOIN_TIMEOUT_S = 60.0
LOOK_S = 0.02
"""Between two looks whether those who have not come are given up."""
MESSAGE = struct.Struct("<qqqq")  # meeting, signal, and of an exchange where in which box: offset, size of the box
RECEIPT = 0  # in the place of a meeting: the exchange in the place of the signal has been read

SLOTS = 4
"""Boxes of a worker, used in turn, and so how many exchanges may be under way at once."""

BOX_ALIGN = 16 * 1024
"""Sizes of boxes are multiples of this many elements, so that minibatches a little larger need no new one."""


@dataclass(frozen=True)
class Notice:
    """What a peer says when it comes to a meeting."""

    signal: int
    offset: int
    box_numel: int


@dataclass
class Peer:
    """Another worker: the line to it, and what it has said so far that nobody has asked for."""

    rank: int
    channel: SocketChannel
    notices: dict[int, Notice] = field(default_factory=dict)
    """By meeting."""
    unread: set[int] = field(default_factory=set)
    """Exchanges of which it has not yet read its part."""
    boxes: dict[int, MappedFile] = field(default_factory=dict)
    """Its boxes by slot, as last seen."""

    def listen(self) -> None:
        """Take in one message."""
        meeting, signal, offset, box_numel = MESSAGE.unpack(self.channel.receive())
        if meeting == RECEIPT:
            self.unread.discard(signal)
        else:
            self.notices[meeting] = Notice(signal, offset, box_numel)


class SharedMemoryCollectives(Collectives):
    """K workers that share the folder of one generation, and the memory of the node or of one GPU."""

    survives_worker = True
    sums_by_itself = True

    def __init__(
        self,
        folder: Path,
        rank: int,
        size: int,
        given_up: Callable[[], bool] = lambda: False,
        device: torch.device = CPU,
    ) -> None:
        """
        Args:
            folder: Of the generation.
            rank: This worker's.
            size: How many there are.
            given_up: Whether to wait for the others no longer; asked while not all are there.
            device: Where the vectors lie that all see; the same GPU for all, or the CPU.
        """
        self.folder = folder
        self.rank = rank
        self.size = size
        self.device = device
        self.meetings = 0
        self.exchanges = 0
        self.subgroups = 0
        self.files: dict[str, MappedFile | DeviceRows] = {}
        self.sums: dict[Reduction, TreeSum] = {}
        self.boxes: dict[int, MappedFile] = {}  # by slot
        self.under_way: dict[int, Handle[None]] = {}  # exchanges by number
        others = [k for k in range(size) if k != rank]
        self.peers = [
            Peer(k, channel) for k, channel in zip(others, meet_peers(folder, rank, size, given_up), strict=True)
        ]
        self.lanes: list[ThreadLane] = []

    def replicated(self, name: str, numel: int) -> Tensor:
        return self.file(f"all-{name}", 1, numel).row(0)

    def persistent_span(self, numel: int) -> slice:
        return self.span(numel)

    def complete(self) -> Handle[None]:
        met = self.barrier()

        def finish() -> None:
            met.wait()

        return Handle(finish)

    def parts(self, reduction: Reduction) -> list[Tensor]:
        nodes = reduction.nodes(self.rank)
        return [self._part(reduction, self.rank, i) for i in range(len(nodes))]

    def barrier(self, signal: int = 0) -> Handle[int]:
        meeting = self.appoint()
        self._come(meeting, signal)
        return Handle(lambda: max(signal, self._await(meeting)))

    def appoint(self) -> int:
        """A meeting for later (`meet`), which takes its place among the calls now."""
        self.meetings += 1
        return self.meetings

    def meet(self, meeting: int) -> None:
        """Come to a meeting that was appointed, and wait for all."""
        self._come(meeting, 0)
        self._await(meeting)

    def reduce_canonical(self, reduction: Reduction, parts: Sequence[Tensor]) -> Handle[Gradient]:
        self._count_canonical(reduction)
        arrived = self.barrier()

        def ordered() -> Gradient:
            arrived.wait()
            if reduction not in self.sums:
                self.sums[reduction] = self._sum_of(reduction)
            return self.sums[reduction]

        return Handle(ordered)

    def cut_at(self, places: Sequence[int]) -> None:
        super().cut_at(places)
        self.sums.clear()

    def _sum_of(self, reduction: Reduction) -> TreeSum:
        """Of this worker's span, by views of the parts, which stay where they are."""
        mine, found = self.span(reduction.numel), dict[Node, Tensor]()
        for k in range(self.size):
            for i, node in enumerate(reduction.nodes(k)):
                found[node] = self._part(reduction, k, i)[mine]
        return TreeSum(reduction.num_virtual, found)

    def all_gather(self, vector: Tensor, signal: int = 0) -> Handle[int]:
        self._count_gather(vector.numel())
        return self.barrier(signal)  # the spans were written where all of them see them

    def all_to_all(self, send: Sequence[Tensor], receive: Sequence[Tensor]) -> Handle[None]:
        """Through boxes that stay. Up to `SLOTS` exchanges may be under way; one more finishes the oldest first."""
        self._count_exchange(send, receive)
        self.exchanges, self.meetings = self.exchanges + 1, self.meetings + 1
        exchange, meeting, slot = self.exchanges, self.meetings, self.exchanges % SLOTS
        self._await_readers(exchange - SLOTS)
        offsets = self._fill_box(slot, send)
        for peer in self.peers:
            if send[peer.rank].numel():
                peer.unread.add(exchange)
            box_numel = self.boxes[slot].numel if slot in self.boxes else 0
            peer.channel.send(MESSAGE.pack(meeting, 0, offsets[peer.rank], box_numel))
        receive[self.rank].copy_(send[self.rank].view_as(receive[self.rank]))

        def finish() -> None:
            self.under_way.pop(exchange, None)
            for peer in self.peers:
                notice, into = self._notice(peer, meeting), receive[peer.rank]
                if into.numel():
                    box = self._box_of(peer, slot, notice.box_numel)
                    into.copy_(box[notice.offset : notice.offset + into.numel()].view_as(into))
                    with suppress(PeerLost):  # it may have closed already, as it may after its last call
                        peer.channel.send(MESSAGE.pack(RECEIPT, exchange, 0, 0))

        handle = self.under_way[exchange] = Handle(finish)
        return handle

    def sum_bucket(self, part: Tensor, bucket: slice) -> Handle[ReducedSpan]:
        """Each reads its share of the bucket from the others' parts, which lie where all see them."""
        numel, reduction = bucket.stop - bucket.start, Reduction(self.size, self.size, part.numel())
        mine = self.span(numel)
        self.meter.count_vectors(numel - (mine.stop - mine.start), (self.size - 1) * (mine.stop - mine.start))
        arrived = self.barrier()

        def ordered() -> ReducedSpan:
            arrived.wait()
            rows = {(k, k + 1): self._part(reduction, k, 0)[bucket][mine] for k in range(self.size)}
            return ReducedSpan(mine, TreeSum(self.size, rows))

        return Handle(ordered)

    def gather_buckets(self, vector: Tensor, buckets: Sequence[slice]) -> None:
        """The shares were written where all of them see them."""
        for bucket in buckets:
            self._count_gather(bucket.stop - bucket.start)
        self.barrier().wait()

    def broadcast(self, vector: Tensor, root: int) -> Handle[None]:
        """Through one mapped vector that all read, and no boxes."""
        self._count_broadcast(vector.numel(), root)
        shared = self.file(f"broadcast-{vector.numel()}", 1, vector.numel()).row(0)
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
        return SharedMemoryCollectives(folder, list(ranks).index(self.rank), len(ranks), device=self.device)

    def lane(self, index: int) -> ThreadLane:
        folder = self.folder / f"lane-{index}"
        folder.mkdir(exist_ok=True)
        channels = meet_peers(folder, self.rank, self.size)
        self.lanes.append(ThreadLane(SharedMemoryMessages(folder, self.rank, channels, self.meter), self))
        return self.lanes[-1]

    def close(self) -> None:
        for lane in self.lanes:
            lane.close()
        for peer in self.peers:
            peer.channel.close()

    def _come(self, meeting: int, signal: int) -> None:
        """Say that whatever was written and read before is done; of a GPU, that it has come to its end."""
        if self.peers and self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        for peer in self.peers:
            peer.channel.send(MESSAGE.pack(meeting, signal, 0, 0))

    def _await(self, meeting: int) -> int:
        """Until all others have come; the largest of their signals."""
        return max((self._notice(peer, meeting).signal for peer in self.peers), default=0)

    def _notice(self, peer: Peer, meeting: int) -> Notice:
        """What a peer says at a meeting. Meetings may be waited for in any order."""
        with waiting(self):
            while meeting not in peer.notices:
                peer.listen()
        return peer.notices.pop(meeting)

    def _await_readers(self, exchange: int) -> None:
        """Until nobody reads any more what this worker sent in an exchange. Every worker has begun it; to have read
        one's own part of it first keeps two that wait here from waiting for each other."""
        if exchange in self.under_way:
            self.under_way[exchange].wait()
        with waiting(self):
            for peer in self.peers:
                while exchange in peer.unread:
                    peer.listen()

    def _fill_box(self, slot: int, send: Sequence[Tensor]) -> list[int]:
        """Lay down what goes to each peer; where it lies. One tensor that goes to several lies there once."""
        offsets, end, cuts = [0] * self.size, 0, dict[int, tuple[int, Tensor]]()
        for peer in self.peers:
            tensor = send[peer.rank]
            if tensor.numel() and id(tensor) not in cuts:
                cuts[id(tensor)] = end, tensor
                end += tensor.numel()
            offsets[peer.rank] = cuts[id(tensor)][0] if tensor.numel() else 0
        box = self.boxes.get(slot)
        if end and (box is None or box.numel < end):
            if box is not None:
                box.path.unlink()  # all have read what was in it
            numel = aligned(end, BOX_ALIGN)
            box = self.boxes[slot] = MappedFile(self._box_path(self.rank, slot, numel), 1, numel)
        for offset, tensor in cuts.values():
            assert box is not None
            box.row(0)[offset : offset + tensor.numel()].view_as(tensor).copy_(tensor)
        return offsets

    def _box_of(self, peer: Peer, slot: int, numel: int) -> Tensor:
        if slot not in peer.boxes or peer.boxes[slot].numel != numel:
            peer.boxes[slot] = MappedFile(self._box_path(peer.rank, slot, numel), 1, numel)
        return peer.boxes[slot].row(0)

    def _box_path(self, rank: int, slot: int, numel: int) -> Path:
        return self.folder / f"box-{rank}-{slot}-{numel}"

    def _part(self, reduction: Reduction, rank: int, index: int) -> Tensor:
        nodes = reduction.nodes(rank)
        row = self.file(parts_name(reduction, rank), len(nodes), reduction.numel).row(index)
        return encoded(row, reduction.wire_of(nodes[index]))

    def file(self, name: str, rows: int, numel: int) -> MappedFile | DeviceRows:
        """Vectors that all workers have under this name: a mapped file of the folder, or memory of the GPU."""
        if name not in self.files:
            path = self.folder / name
            if self.device.type == "cuda":
                self.files[name] = DeviceRows(path, rows, numel, self.device, num_others=self.size - 1)
            else:
                self.files[name] = MappedFile(path, rows, numel)
        return self.files[name]


def parts_name(reduction: Reduction, rank: int) -> str:
    """Under which name (`file`) the parts of a worker lie; those of reductions of other lengths lie beside them."""
    return f"parts-{rank}-{reduction.num_virtual}-{reduction.numel}"


def meet_peers(
    folder: Path,
    rank: int,
    size: int,
    given_up: Callable[[], bool] = lambda: False,
    timeout_s: float = JOIN_TIMEOUT_S,
) -> list[SocketChannel]:
    """A connection to every other worker of the folder, in the order of their ranks.

    Raises:
        PeerLost: One of them did not come within `timeout_s`, or before they were given up.
    """
    server, deadline = listen(folder / f"rank-{rank}"), time.monotonic() + timeout_s
    server.settimeout(LOOK_S)
    found: dict[int, SocketChannel] = {}
    try:
        for k in range(rank):
            found[k] = connect(folder / f"rank-{k}", f"worker {k}", timeout_s, given_up)
        for peer in found.values():
            peer.send(struct.pack("<q", rank))
        while len(found) < size - 1:
            if (channel := _accept(server)) is not None:
                (k,) = struct.unpack("<q", channel.receive())
                channel.peer = f"worker {k}"
                found[k] = channel
            elif given_up() or time.monotonic() > deadline:
                missing = [k for k in range(size) if k != rank and k not in found]
                raise PeerLost(f"workers {missing} did not come within {timeout_s:g} s, or were given up")
    except BaseException:
        for peer in found.values():
            peer.close()
        raise
    finally:
        server.close()
    return [found[k] for k in sorted(found)]


def _accept(server: socket.socket) -> SocketChannel | None:
    """None if nobody comes for a while."""
    try:
        connection, _ = server.accept()
    except TimeoutError:
        return None
    connection.settimeout(None)
    return SocketChannel(connection, "a worker")
