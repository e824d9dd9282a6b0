"""The parameter store of workers and shards that share no memory: vectors travel behind the messages, on wires."""

from __future__ import annotations

import time
from functools import partial
from socket import socket
from threading import Thread

import torch
from torch import Tensor

from trainers.errors import PeerLost
from trainers.links.encoding import DTYPES, bits_of, encoded
from trainers.links.tcp import Wire
from trainers.links.waiting import waiting
from trainers.parameter_server.client import PATIENCE_S, SlottedStore
from trainers.parameter_server.groups import GroupSlice
from trainers.parameter_server.pending import PendingPush
from trainers.parameter_server.server import Server
from trainers.parameter_server.wire_format import COMPRESSED_PUSH, JOIN, PUSHES, REQUEST

RETURN_WITHIN_S = 30.0
"""A worker that has not come back by then to a shard that took over counts as dead."""

SHORTEST_S = 0.001
"""That a look for a word of a shard takes."""


class WiredStore(SlottedStore[Wire]):
    """A worker's side."""

    def answers(self, within_s: float) -> bool:
        ask, until_s = self.asking[0], time.monotonic() + within_s
        while ask.missing:
            shard, left_s = min(ask.missing), until_s - time.monotonic()
            if (left_s <= 0 < within_s) or not self._hears(shard, max(left_s, SHORTEST_S)):
                return False
        return True

    def _hears(self, shard: int, within_s: float) -> bool:
        """Whether a shard says a word in time."""
        channel, heard = self.channels[shard], True
        channel.set_timeout(within_s)
        try:
            with waiting(self):
                self._take(shard, channel.receive())
        except TimeoutError:
            heard = False
        except PeerLost as error:
            self._return_to(shard, error)  # with a channel of its own
            return True
        channel.set_timeout(PATIENCE_S)
        return heard

    def _hand_over(self, shard: int, sent: PendingPush, message: bytes) -> None:
        gradient = sent.compressed.get(shard)
        if gradient is None:
            part = self.slots[sent.slot][self.parts[shard][sent.push.identity.group]]
            gradient = bits_of(part.to(DTYPES[sent.push.wire]))
        self.channels[shard].send(message, gradient)

    def _take_version(self, shard: int, group: int, row: int) -> None:
        self.channels[shard].receive_into(self.params[self.parts[shard][group]])


class WiredServer(Server[Wire]):
    """A shard's side: a thread for each worker receives, the serving thread alone talks to the shard."""

    token = 0
    """Only who knows it may join."""

    def __init__(self, listener: socket | None, pieces: dict[int, GroupSlice]) -> None:
        super().__init__(listener, pieces)
        self.wires: set[Wire] = set()

    def take(self, wire: Wire) -> None:
        """Begin to listen to a worker."""
        self.wires.add(wire)
        Thread(target=self._receive, args=(wire,), name="from a worker", daemon=True).start()

    def _receive(self, wire: Wire) -> None:
        """All that comes from one worker, until it is gone."""
        worker = -1
        try:
            kind, worker, num_slots, token, *_ = REQUEST.unpack(wire.receive())
            if kind != JOIN or token != self.token:
                return
            wire.peer = f"worker {worker}"
            slots = torch.zeros(num_slots, self.span.stop - self.span.start)
            self._submit(partial(self._join, worker, wire))
            while True:
                kind, *numbers = REQUEST.unpack(wire.receive())
                gradient = None
                if kind in PUSHES:
                    gradient = encoded(slots[numbers[1]][self._within(numbers[5])], PUSHES[kind])
                    if kind == COMPRESSED_PUSH:
                        self._receive_compressed(wire, numbers[5], gradient)
                    else:
                        wire.receive_into(bits_of(gradient))
                self._submit(partial(self._request, worker, kind, numbers, gradient))
        except PeerLost:
            return
        finally:
            wire.close()
            self._submit(partial(self._drop, worker, wire))

    def _receive_compressed(self, wire: Wire, group: int, gradient: Tensor) -> None:
        """Fill (n,) with what a worker compressed."""
        compressor = self.pieces[group].shard.config.compressor
        assert compressor is not None, "a push is compressed that should not be"
        message = torch.empty(compressor.length(len(gradient)), dtype=torch.uint8)
        wire.receive_into(message)
        compressor.decode(message, gradient)

    def _drop(self, worker: int, wire: Wire) -> None:
        self.wires.discard(wire)
        self._forget(worker, wire)

    def _within(self, group: int) -> slice:
        """A group's part, counted from the start of this shard's slice."""
        span = self.pieces[group].span
        return slice(span.start - self.span.start, span.stop - self.span.start)

    def _send_version(self, worker: int, group: int, row: int, message: bytes) -> None:
        self.channels[worker].send(message, self.pieces[group].shard.ring[row])

    def _let_go(self, worker: int, channel: Wire | None) -> None:
        """Its thread ends with the connection, and its slots with the last push in them."""

    def _is_dead(self, worker: int) -> bool:
        return time.monotonic() - self.begun_s > RETURN_WITHIN_S

    def _end(self) -> None:
        super()._end()
        for wire in self.wires:
            wire.close()
