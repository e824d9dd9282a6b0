"""The parameter store of workers and shards on different nodes, beside the collectives of process groups.

It was to run over process groups of two, and does not, because a group is unfit for a server: a gloo `recv` that
times out closes the pair for good, so an idle connection needs an endless timeout, and then neither `close` nor
`abort` wakes whoever waits in it (tried with torch 2.15). A TCP connection does both, moves a slice as fast, since
gloo's transport is TCP too, and needs no second channel for the messages. Nothing is pickled: a message is nine
numbers, and a slice is sent from and received into the vectors' own memory.

A worker finds a shard's address at the rendezvous, with a token that only this generation's shard accepts.
"""

import json
import secrets
import time
from collections.abc import Sequence
from functools import partial
from socket import create_connection, create_server, socket
from threading import Thread

import torch

from trainers.errors import PeerLost, StoreClosed
from trainers.store.shard import Shard
from trainers.transport.rendezvous import Address, own_host, reach_rendezvous
from trainers.transport.shard_server import Server
from trainers.transport.store_client import SlottedStore
from trainers.transport.store_messages import JOIN, JOIN_TIMEOUT_S, PUSH, REPLY, REQUEST, SNAPSHOT, reply, request
from trainers.transport.tcp import Line, keep_watch


class ProcessGroupStore(SlottedStore[Line]):
    """A worker's side; `prefix` is the generation's."""

    def __init__(
        self, store_address: Address, prefix: str, worker: int, shards: Sequence[slice], num_slots: int
    ) -> None:
        tokens, lines = [], []
        rendezvous = reach_rendezvous(store_address, JOIN_TIMEOUT_S)
        for s in range(len(shards)):
            host, port, token = json.loads(rendezvous.get(_name(prefix, s), JOIN_TIMEOUT_S))
            tokens.append(token)
            lines.append(_connect((host, port), s))
        rendezvous.close()
        super().__init__(lines, shards, torch.zeros(num_slots, shards[-1].stop))
        for line, token in zip(lines, tokens, strict=True):
            line.ring(request(JOIN, worker, num_slots, token))
            line.answer()

    def _hand_over(self, slot: int, message: bytes) -> None:
        for line, span in zip(self.bells, self.spans, strict=True):
            line.ring(message, self.slots[slot][span])

    def _take_version(self, shard: int, row: int) -> None:
        start = time.perf_counter()
        try:
            self.bells[shard].receive_into(self.params[self.spans[shard]])
        except PeerLost as error:
            raise StoreClosed(str(error)) from error
        self.waited_s += time.perf_counter() - start


class ProcessGroupShardServer(Server[Line]):
    """A shard's side: a thread for each worker receives, the serving thread alone talks to the shard."""

    def __init__(
        self, store_address: Address, prefix: str, index: int, num_workers: int, span: slice, shard: Shard
    ) -> None:
        rendezvous = reach_rendezvous(store_address, JOIN_TIMEOUT_S)
        host = own_host(rendezvous)
        super().__init__(create_server((host, 0), backlog=num_workers), span, shard)
        self.token = secrets.randbits(62)
        self.lines: set[Line] = set()
        rendezvous.set(_name(prefix, index), json.dumps([host, self.listener.getsockname()[1], self.token]).encode())
        rendezvous.close()

    def _accept(self, connection: socket) -> None:
        line = Line(keep_watch(connection), "a worker", REQUEST.size)
        self.lines.add(line)
        Thread(target=self._receive, args=(line,), name="from a worker", daemon=True).start()

    def _readable(self, connection: socket) -> None:
        raise AssertionError("connections have threads of their own")

    def _receive(self, line: Line) -> None:
        """All that comes from one worker, until it is gone."""
        worker = -1
        try:
            kind, worker, num_slots, token, *_ = REQUEST.unpack(line.answer())
            if kind != JOIN or token != self.token:
                return
            line.peer = f"worker {worker}"
            slots = torch.zeros(num_slots, self.span.stop - self.span.start)
            self._tell(partial(self._join, worker, line))
            while True:
                kind, *numbers = REQUEST.unpack(line.answer())
                gradient = slots[numbers[0]] if kind == PUSH else None
                if gradient is not None:
                    line.receive_into(gradient)
                self._tell(partial(self._request, worker, kind, numbers, gradient))
        except PeerLost:
            return
        finally:
            line.close()
            self._tell(partial(self._drop, worker, line))

    def _drop(self, worker: int, line: Line) -> None:
        self.lines.discard(line)
        self._forget(worker, line)

    def _send_version(self, worker: int, row: int) -> None:
        self.bells[worker].ring(reply(SNAPSHOT, row, self.shard.examples), self.shard.ring[row])

    def _end(self) -> None:
        for line in self.lines:
            line.close()
        super()._end()


def _name(prefix: str, shard: int) -> str:
    return f"{prefix}/shard-{shard}"


def _connect(address: Address, shard: int) -> Line:
    try:
        connection = create_connection(address, JOIN_TIMEOUT_S)
    except OSError as error:
        raise PeerLost(f"shard {shard} at {address[0]}:{address[1]} does not answer: {error}") from error
    connection.settimeout(None)
    return Line(keep_watch(connection), f"shard {shard}", REPLY.size)
