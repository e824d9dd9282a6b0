"""One end of measured transfers: a process on a node that sends and receives as a run's worker or shard does."""

import os
import socket
import statistics
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import ray
import torch
from ray.util import get_node_ip_address

from trainers.collectives.shared_memory import SharedMemoryCollectives
from trainers.cost.profiles.link_timing import WORKERS, reduction_seconds
from trainers.links.rendezvous import Address
from trainers.links.tcp import Connection, keep_watch
from trainers.runtime.node_folder import cleanup, node_folder
from trainers.runtime.object_store import Payload, copy_payload, payload_of

HEADER = struct.Struct("<q")  # elements that follow; -1: no more
LEAST = 3
"""Transfers of a size, however short the time for it is."""
CONNECT_S = 10.0
NUM_BYTES = 4  # of a float32
Transferred = tuple[float, float]
"""Seconds of a transfer, and CPU seconds of this machine in it."""


class LinkEnd:
    """An actor. Of a pair one end sends, the other receives; on shared memory both add up what they hold."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.listener: socket.socket | None = None
        self.vectors: dict[int, torch.Tensor] = {}

    def listen(self) -> Address:
        """Where `accept` then waits."""
        self.listener = socket.create_server((get_node_ip_address(), 0))
        self.listener.settimeout(CONNECT_S)
        host, port = self.listener.getsockname()[:2]
        return str(host), int(port)

    def accept(self) -> None:
        """Receive from one sender until it ends, and answer each vector with an empty message."""
        assert self.listener is not None, "listens first"
        with closing(self.listener):
            line = self.listener.accept()[0]
        line.settimeout(None)
        wire = Connection(keep_watch(line), "the sender", HEADER.size)
        while (numel := HEADER.unpack(wire.receive())[0]) >= 0:
            if numel:
                wire.receive_into(self._vector(numel))
            wire.send(HEADER.pack(0))
        wire.finish(CONNECT_S)

    def machine(self) -> str:
        """Which one this end is on; network namespaces may divide one into several nodes."""
        return Path("/proc/sys/kernel/random/boot_id").read_text()

    def send(self, address: Address, sizes: Sequence[int], window_s: float) -> list[Transferred]:
        """Seconds of a vector of each of these bytes on a connection: the way there and back, less half of that of an
        empty message."""
        line = socket.create_connection(address, CONNECT_S)
        line.settimeout(None)
        wire = Connection(keep_watch(line), "the receiver", HEADER.size)

        def transfer(numel: int) -> None:
            wire.send(HEADER.pack(numel), self._vector(numel) if numel else None)
            wire.receive()

        found = one_way(transfer, sizes, window_s)
        wire.send(HEADER.pack(-1))
        wire.finish(CONNECT_S)
        return found

    def take(self, numel: int, what: Payload) -> None:
        """Receive a vector through the object store."""
        if numel:
            copy_payload(self._vector(numel), what)

    def put(self, receiver: "ray.actor.ActorHandle", sizes: Sequence[int], window_s: float) -> list[Transferred]:
        """Likewise, through the object store."""

        def transfer(numel: int) -> None:
            ray.get(receiver.take.remote(numel, payload_of(self._vector(numel)) if numel else []))

        return one_way(transfer, sizes, window_s)

    def add_up(self, name: str, pair: str, rank: int, sizes: Sequence[int]) -> list[Transferred]:
        """Seconds in which this end and another one reduce a vector of which each reads so many bytes of the other's,
        and meet.

        Args:
            name: Of the folder of all ends on this node.
            pair: Of the folder in it that only these two use.
            rank: 0 or 1.
            sizes: Bytes that each reads.
        """
        folder = node_folder(name) / pair
        folder.mkdir(exist_ok=True)
        with closing(SharedMemoryCollectives(folder, rank, WORKERS)) as collectives:
            found = [(sum(reduction_seconds(collectives, WORKERS * size // NUM_BYTES)), 0.0) for size in sizes]
            collectives.barrier().wait()
        return found

    def clean(self, name: str) -> None:
        """Remove the folder that `add_up` has made."""
        cleanup(name)

    def _vector(self, numel: int) -> torch.Tensor:
        if numel not in self.vectors:
            self.vectors[numel] = torch.zeros(numel)
        return self.vectors[numel]


def one_way(transfer: Callable[[int], None], sizes: Sequence[int], window_s: float) -> list[Transferred]:
    """Seconds of a transfer of each of these bytes, from those of there and back. transfer: Of so many elements."""
    back, idle_s = median_seconds(lambda: transfer(0), window_s)
    back /= 2
    found = [median_seconds(partial(transfer, size // NUM_BYTES), window_s) for size in sizes]
    return [(max(each - back, back), max(busy - idle_s, 0.0)) for each, busy in found]


def median_seconds(call: Callable[[], None], window_s: float) -> Transferred:
    """Of a call that is repeated for so long, after a first one that is not counted: the median, and the CPU seconds of
    a call at the mean."""
    call()
    seconds, until, before_s = list[float](), time.perf_counter() + window_s, busy_s()
    while len(seconds) < LEAST or time.perf_counter() < until:
        begun = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds), (busy_s() - before_s) / len(seconds)


def busy_s() -> float:
    """CPU seconds of this machine since it started, in all processes and in the kernel, the network's among them."""
    user, nice, system, _, _, irq, softirq, *_ = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return sum(map(int, (user, nice, system, irq, softirq))) / os.sysconf("SC_CLK_TCK")
