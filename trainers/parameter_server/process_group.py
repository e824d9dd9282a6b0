"""The parameter store of workers and shards on different nodes, beside the collectives of process groups.

It was to run over process groups of two, and does not, because a group is unfit for a server: a gloo `recv` that
times out closes the pair for good, so an idle connection needs an endless timeout, and then neither `close` nor
`abort` wakes whoever waits in it (tried with torch 2.15). A TCP connection does both, moves a slice as fast, since
gloo's transport is TCP too, and needs no second channel for the messages. Nothing is pickled: a message is ten
numbers, and a slice is sent from and received into the vectors' own memory.

A worker finds a shard's address at the rendezvous, with a token that only this generation's shard accepts.
"""

import json
import secrets
from collections.abc import Sequence
from socket import create_connection, create_server, socket

import torch

from trainers.errors import PeerLost
from trainers.links.rendezvous import Address, own_host, reach_rendezvous
from trainers.links.tcp import SILENT_S, Connection, keep_watch
from trainers.parameter_server.groups import GroupSlice
from trainers.parameter_server.tcp import WiredServer, WiredStore
from trainers.parameter_server.wire_format import JOIN_TIMEOUT_S, REPLY, REQUEST

RETRY_S = 2.0
"""How long an attempt to come back to a shard may take."""


class ProcessGroupStore(WiredStore):
    """A worker's side; `prefix` is the generation's."""

    def __init__(
        self,
        store_address: Address,
        prefix: str,
        worker: int,
        shards: Sequence[slice],
        num_slots: int,
        groups: Sequence[slice] = (),
        silent_s: float = SILENT_S,
    ) -> None:
        """silent_s: how long a shard may be silent before its connection counts as lost."""
        self.store_address, self.prefix, self.silent_s = store_address, prefix, silent_s
        super().__init__(worker, shards, torch.zeros(num_slots, shards[-1].stop), groups)
        self._join_all()

    def _connect(self, shard: int) -> tuple[Connection, int]:
        rendezvous = reach_rendezvous(self.store_address, JOIN_TIMEOUT_S)
        try:
            host, port, token = json.loads(rendezvous.get(_name(self.prefix, shard), JOIN_TIMEOUT_S))
        finally:
            rendezvous.close()
        # The address may still be that of a dead node, which answers nothing at all: look again soon.
        patience_s = RETRY_S if shard in self.joined else JOIN_TIMEOUT_S
        return _connect((host, port), shard, patience_s, self.silent_s), token


class ProcessGroupShardServer(WiredServer):
    """A shard's side."""

    def __init__(
        self, store_address: Address, prefix: str, index: int, num_workers: int, pieces: dict[int, GroupSlice],
        silent_s: float = SILENT_S,
    ) -> None:  # fmt: skip
        """silent_s: how long a worker may be silent before it counts as gone."""
        self.silent_s = silent_s
        rendezvous = reach_rendezvous(store_address, JOIN_TIMEOUT_S)
        listener = create_server((own_host(rendezvous), 0), backlog=num_workers)
        rendezvous.close()
        super().__init__(listener, pieces)
        self.name, self.address = _name(prefix, index), listener.getsockname()[:2]
        self.token = secrets.randbits(62)
        self.announce(store_address)

    def announce(self, store_address: Address) -> None:
        """Have workers find this shard at a rendezvous, from any thread.

        Raises:
            PeerLost: There is none.
        """
        rendezvous = reach_rendezvous(store_address, JOIN_TIMEOUT_S)
        rendezvous.set(self.name, json.dumps([*self.address, self.token]).encode())
        rendezvous.close()

    def _accept(self, connection: socket) -> None:
        self.take(Connection(keep_watch(connection, self.silent_s), "a worker", REQUEST.size))


def _name(prefix: str, shard: int) -> str:
    return f"{prefix}/shard-{shard}"


def _connect(address: Address, shard: int, timeout_s: float, silent_s: float) -> Connection:
    try:
        connection = create_connection(address, timeout_s)
    except OSError as error:
        raise PeerLost(f"shard {shard} at {address[0]}:{address[1]} does not answer: {error}") from error
    connection.settimeout(None)
    return Connection(keep_watch(connection, silent_s), f"shard {shard}", REPLY.size)
