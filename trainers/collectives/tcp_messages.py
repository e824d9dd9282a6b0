"""Point-to-point messages between nodes: one TCP connection for each direction of a pair, made when first needed.

Whoever waits for a vector sends meanwhile what is still to be sent, so no thread is needed and nothing is copied on
the CPU: vectors leave from and arrive in their own memory. They are not gloo's messages, because nothing wakes a thread
that waits in one of these.
"""

import secrets
import select
import socket
import struct
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trainers.collectives.messages import Messages
from trainers.errors import PeerLost
from trainers.links.handle import Handle
from trainers.links.meter import Meter
from trainers.links.rendezvous import Address
from trainers.links.tcp import keep_watch, memory_of, receive_exactly

HELLO = struct.Struct("<qq")  # token of the receiver, rank of the sender
FRAME = struct.Struct("<q")  # elements that follow
GRACE_S = 0.5  # for what a peer had sent before it closed
ENOUGH_BYTES = 2**18
"""Of a vector, for which a lane is woken: for each packet it would take the processor, and Python's lock, from a thread
that computes. On two nodes at 1 Gbit/s whose workers have a core each, lanes took a quarter to two fifths less so.
"""


@dataclass(frozen=True)
class TcpEndpoint:
    """Where a worker listens for a lane's messages, and the token that only members of its generation know."""

    address: Address
    token: int


@dataclass
class Outgoing:
    """What waits to leave to one peer."""

    line: socket.socket
    waiting: deque[memoryview] = field(default_factory=deque)
    queued: int = 0
    left: int = 0
    """How many of those that were queued have left wholly."""

    def put(self, memory: memoryview) -> None:
        """Queue some bytes."""
        self.waiting.append(memory)
        self.queued += 1

    def flush(self) -> None:
        """Send what the system takes now."""
        while self.waiting:
            try:
                count = self.line.send(self.waiting[0])
            except BlockingIOError:
                return
            self.waiting[0] = self.waiting[0][count:]
            if not self.waiting[0]:
                self.waiting.popleft()
                self.left += 1


class TcpMessages(Messages):
    """Messages of one lane. `endpoints` are all workers', in the order of their ranks; `listener` is this one's own."""

    def __init__(
        self,
        rank: int,
        nodes: tuple[int, ...],
        endpoints: Sequence[TcpEndpoint],
        listener: socket.socket,
        timeout_s: float,
        meter: Meter,
    ) -> None:
        self.rank, self.size, self.nodes = rank, len(nodes), nodes
        self.meter = meter
        self.listener, self.endpoints, self.timeout_s = listener, endpoints, timeout_s
        self.outgoing: dict[int, Outgoing] = {}
        self.incoming: dict[int, socket.socket] = {}
        self.alarm, self.alarmed = socket.socketpair()
        self.closed = False  # by this worker
        self.lost = False  # by a peer

    def lose(self) -> None:
        """A peer is gone: wait no longer than for what it may have sent before. Called from another thread."""
        self.lost = True
        with suppress(OSError):
            self.alarm.send(b"!")

    def close(self) -> None:
        self.closed = True
        with suppress(OSError):
            self.alarm.send(b"!")
        lines = [self.listener, *self.incoming.values(), *(out.line for out in self.outgoing.values())]
        for line in [*lines, self.alarm, self.alarmed]:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()

    def _send(self, vector: Tensor, to: int) -> Handle[None]:
        try:
            out = self.outgoing.get(to) or self._reach(to)
            out.put(memoryview(FRAME.pack(vector.numel())))
            out.put(memory_of(vector.cpu()))
            last = out.queued
            out.flush()
        except OSError as error:
            raise PeerLost(f"worker {to} is gone") from error

        def finish() -> None:
            while out.left < last:
                self._wait(None)

        return Handle(finish)

    def _receive(self, into: Tensor, source: int) -> Handle[None]:
        def finish() -> None:
            while source not in self.incoming:
                self._wait(self.listener)
                self._accept()
            frame = bytearray(FRAME.size)
            self._fill(memoryview(frame), source)
            (numel,) = FRAME.unpack(frame)
            assert numel == into.numel(), f"worker {source} sent {numel} elements, not {into.numel()}"
            here = into if into.device.type == "cpu" else torch.empty(numel)
            self._fill(memory_of(here), source)
            if here is not into:
                into.copy_(here)

        return Handle(finish)

    def _fill(self, memory: memoryview, source: int) -> None:
        line = self.incoming[source]
        while memory:
            try:
                count = line.recv_into(memory)
            except BlockingIOError:
                line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, min(len(memory), ENOUGH_BYTES))
                self._wait(line)
                continue
            except OSError as error:
                raise PeerLost(f"worker {source} is gone") from error
            if not count:
                raise PeerLost("the group was closed" if self.closed else f"worker {source} is gone")
            memory = memory[count:]

    def _wait(self, reading: socket.socket | None) -> None:
        """Until there is something to read, or with None until something has left; sends meanwhile.

        Raises:
            PeerLost: That can no longer be expected.
        """
        try:
            while True:
                ready = self._poll(reading)
                if not ready:
                    raise PeerLost("a peer closed" if self.lost else f"no peer answered within {self.timeout_s:g} s")
                if self.alarmed in ready:
                    self.alarmed.recv(64)
                sending = [out for out in self.outgoing.values() if out.line in ready]
                for out in sending:
                    out.flush()
                if reading in ready or (reading is None and sending):
                    return
        except (OSError, ValueError) as error:  # ValueError: another thread has closed a socket
            raise PeerLost("the group was closed" if self.closed else "a peer is gone") from error

    def _poll(self, reading: socket.socket | None) -> set[socket.socket | None]:
        """What can be read, or takes more of what waits to leave; nothing if nothing happened for too long."""
        wanted = {self.alarmed.fileno(): self.alarmed} | ({reading.fileno(): reading} if reading else {})
        wanted |= {out.line.fileno(): out.line for out in self.outgoing.values() if out.waiting}
        poll = select.poll()
        for descriptor, line in wanted.items():
            poll.register(descriptor, select.POLLIN if line in (self.alarmed, reading) else select.POLLOUT)
        found = poll.poll(1000 * (GRACE_S if self.lost else self.timeout_s))
        if self.closed:
            raise PeerLost("the group was closed")
        return {wanted[descriptor] for descriptor, _ in found}

    def _reach(self, to: int) -> Outgoing:
        line = keep_watch(socket.create_connection(self.endpoints[to].address, self.timeout_s))
        line.sendall(HELLO.pack(self.endpoints[to].token, self.rank))
        line.setblocking(False)
        self.outgoing[to] = Outgoing(line)
        if self.closed:
            line.close()
        return self.outgoing[to]

    def _accept(self) -> None:
        try:
            line, _ = self.listener.accept()
            line.settimeout(self.timeout_s)
            hello = bytearray(HELLO.size)
            receive_exactly(line, memoryview(hello))
        except OSError:
            return  # whoever it was did not come to stay
        token, source = HELLO.unpack(hello)
        if token == self.endpoints[self.rank].token and 0 <= source < self.size:
            keep_watch(line).setblocking(False)
            self.incoming[source] = line


def listen(host: str, backlog: int) -> tuple[socket.socket, TcpEndpoint]:
    """A socket that the others reach, and what they must know of it."""
    listener = socket.create_server((host, 0), backlog=backlog)
    return listener, TcpEndpoint((host, listener.getsockname()[1]), secrets.randbits(62))
