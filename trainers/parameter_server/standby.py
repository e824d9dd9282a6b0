"""A standby of a shard on another node: it has every record of the serving process's journal before that record counts.

With each record the serving process sends the identities applied since the last one, and row and state of the newest
version where the standby does not have them; then it waits for the standby's acknowledgement. The standby writes all of
it into a ring, states and a journal of its own, at the same indices and in the same order. So a process on the
standby's node recovers from them as from the memory of a dead process on its own node, whatever instruction was the
last. Only readers are left out: no worker reads a row there.

A shard goes on without a standby that is silent or gone only after it was given permission, because whoever might have
the standby serve must know first that it lacks what is acknowledged from then on. A standby that begins to serve ends
the connection with a message after which the process that served before serves no more.

A message is a number of words and names the vectors behind it, which go as they lie in memory; nothing is pickled.
"""

import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from socket import SHUT_RDWR, create_connection, socket

import numpy as np
import torch
from torch import Tensor

from trainers.errors import PeerLost, Superseded
from trainers.links.rendezvous import Address
from trainers.links.tcp import Connection, keep_watch
from trainers.parameter_server.groups import GroupSlice
from trainers.parameter_server.journal import num_words, packed, unpacked
from trainers.parameter_server.push_identity import IdentitySet, PushIdentity
from trainers.parameter_server.record import Journal, Record
from trainers.parameter_server.shard import Shard

HELLO, RECORD = 1, 2
"""To the standby: the token; a record: of which group, whether a row and a state follow it, how many identities (-1:
the log is as it was), and whether the sender waits for an answer."""

TAKEN, OVER = 1, 2
WORD = struct.Struct("<q")
"""The standby's answer."""

ANSWER_S = 5.0
SLOWEST_BYTES_PER_S = 50e6
"""A standby is given up when it has not answered after so long and the time that a version takes at this rate."""

FAREWELL_S = 1.0

Added = list[PushIdentity] | None
"""Identities for the log; none at all is another thing than nothing new in a new version."""


def message_of(num_workers: int) -> struct.Struct:
    """The messages to the standby of a shard with room for so many workers."""
    return struct.Struct(f"<{5 + num_words(num_workers)}q")


class Replicator:
    """The serving side of the connection; but for the constructor, used by the serving thread alone."""

    def __init__(
        self,
        address: Address,
        token: int,
        pieces: dict[int, GroupSlice],
        released: Callable[[str], bool],
        answer_s: float = ANSWER_S,
    ) -> None:
        """Connect.

        Args:
            address: Where the standby listens.
            token: What it asks for.
            pieces: The shard's.
            released: Given the reason why the standby is missed, says whether the shard may go on without it; if not,
                another process serves in its place. It may take as long as it needs.
            answer_s: See `ANSWER_S`.

        Raises:
            PeerLost: There is no such standby.
            Superseded: It serves.
        """
        self.pieces = pieces
        self.released = released
        self.superseded = False
        self.message = message_of(next(iter(pieces.values())).shard.capacity)
        try:
            connection = create_connection(address, answer_s)
        except OSError as error:
            raise PeerLost(f"the copy at {address[0]}:{address[1]} does not answer: {error}") from error
        connection.settimeout(None)
        self.line = Connection(keep_watch(connection), "the copy", WORD.size)
        version = max(sum(vector.nbytes for vector in _version(p.shard, 0, 0)) for p in pieces.values())
        self.patience_s = answer_s + version / SLOWEST_BYTES_PER_S
        self.line.set_timeout(self.patience_s)
        self._send(HELLO, token)
        self.await_answer()

    def begin(self) -> None:
        """Send everything, and from then on whatever is committed.

        Raises:
            PeerLost: The standby is gone or silent; the shard goes on as before.
            Superseded: It serves.
        """
        for piece in self.pieces.values():
            _stop_replicating(piece.shard)  # to the standby before this one
        journals = {group: ReplicatedJournal(piece.shard, group, self) for group, piece in self.pieces.items()}
        for journal in journals.values():
            journal.send_all()
        for group, piece in self.pieces.items():
            piece.shard.journal = journals[group]

    def send(self, group: int, record: Record, vectors: Sequence[Tensor], added: Added, wants_answer: bool) -> None:
        """Have a record go out, with row and state of its newest version and what was added to the log."""
        behind = list(vectors)
        if added:
            rows = np.array([(i.epoch, i.group, i.first, i.last) for i in added], np.int64)
            behind.append(torch.from_numpy(rows.reshape(-1).view(np.float32)))
        self._send(RECORD, group, bool(vectors), -1 if added is None else len(added), wants_answer, *packed(record))
        for vector in behind:
            self.line.send(b"", vector)

    def await_answer(self) -> None:
        """Wait until the standby has all that was sent.

        Raises:
            PeerLost: It is gone or silent.
            Superseded: It serves.
        """
        try:
            (word,) = WORD.unpack(self.line.receive())
        except TimeoutError as error:
            raise PeerLost(f"{error} for {self.patience_s:g} s") from error
        if word == OVER:
            self.superseded = True
            raise Superseded("the copy of this shard serves in its place")

    def part(self, why: str) -> None:
        """Go on without the standby.

        Raises:
            Superseded: Another process serves in this one's place.
        """
        self.line.close()
        if self.superseded or not self.released(why):
            raise Superseded(f"{why}, and this process is not to serve without it")
        for piece in self.pieces.values():
            _stop_replicating(piece.shard)

    def _send(self, *words: int) -> None:
        room = self.message.size // 8
        self.line.send(self.message.pack(*words, *[0] * (room - len(words))))


class ReplicatedJournal:
    """The journal of a shard that has a standby: whatever it keeps it replicates too."""

    def __init__(self, shard: Shard, group: int, replicator: Replicator) -> None:
        """shard: one whose journal replicates nothing."""
        self.shard = shard
        self.group = group
        self.replicator = replicator
        self.journal: Journal = shard.journal
        self.held: set[tuple[int, int]] = set()  # row and state of versions that the standby has
        self.sent: tuple[object, ...] = ()  # newest version and members of the last record
        self.added: Added = None  # to the log, since the last record

    def send_all(self) -> None:
        """The newest version, the one before it where that is whole, and all identities.

        Raises:
            PeerLost: The standby is gone or silent.
            Superseded: It serves.
        """
        record, older = self.shard.record(), IdentitySet.from_json(self.shard.applied.to_json())
        before, latest = record.before, self.shard.latest if record.before.number < record.newest.number else []
        for identity in latest:
            older.discard(identity)
        rows = [PushIdentity(epoch, first, last, group) for epoch, group, first, last in older.to_json()]
        self._send(Record(before, before, record.members), rows)
        self.replicator.await_answer()
        if latest or before != record.newest:
            self._send(record, latest)
            self.replicator.await_answer()

    # -- as the shard asks ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        raise NotImplementedError("a shard has begun before it has a standby")

    def pinned(self) -> dict[int, int]:
        return self.journal.pinned()

    def append(self, identities: Sequence[PushIdentity], logged: int) -> int:
        self.added = list(identities)
        return self.journal.append(identities, logged)

    def commit(self, record: Record) -> None:
        """Raises Superseded where another process serves in this one's place."""
        waits = self._send(record, self.added)
        self.added = None
        self.journal.commit(record)
        try:
            if waits:
                self.replicator.await_answer()
        except PeerLost as error:
            self.replicator.part(str(error))

    def pin(self, reader: int, row: int) -> None:
        self.journal.pin(reader, row)

    def unpin(self, reader: int) -> None:
        self.journal.unpin(reader)

    def _send(self, record: Record, added: Added) -> bool:
        """Whether the standby will answer: not to a record that only gives up the version before, which nothing depends
        on."""
        newest, before = ((version.row, version.state) for version in (record.newest, record.before))
        vectors = [] if newest in self.held else _version(self.shard, *newest)
        sent = record.newest, record.members
        waits = added is not None or sent != self.sent
        self.replicator.send(self.group, record, vectors, added, waits)
        # A version that stands in no record any more is about to be overwritten, or to be made anew.
        self.held, self.sent = {newest, before}, sent
        return waits


class StandbyShard:
    """The standby's side. It follows one serving process until the connection ends; the next sends everything anew."""

    def __init__(self, listener: socket, token: int, pieces: dict[int, GroupSlice]) -> None:
        """pieces: the shard's memory on this node, in which nothing counts yet."""
        self.listener = listener
        self.token = token
        self.pieces = pieces
        self.message = message_of(next(iter(pieces.values())).shard.capacity)
        self.logged: dict[
            int, dict[int, int]
        ] = {}  # group -> number of a version -> rows of this log that belong to it
        self.line: Connection | None = None
        self.over = False
        self.lock = threading.Lock()
        self.ended = threading.Event()

    def follow(self) -> None:
        """Keep what arrives, until `end`."""
        try:
            with suppress(OSError):  # the listener was shut down
                while not self.over:
                    self._hear(keep_watch(self.listener.accept()[0]))
        finally:
            self.listener.close()
            self.ended.set()

    def end(self) -> None:
        """Accept nothing more, and tell the serving process so; returns once nothing is written any more."""
        with self.lock:
            self.over = True
        with suppress(OSError):  # it has ended already
            self.listener.shutdown(SHUT_RDWR)
        if self.line is not None:
            self.line.send(WORD.pack(OVER))
            self.line.finish(FAREWELL_S)
        self.ended.wait()

    def _hear(self, connection: socket) -> None:
        """Keep all that comes from one serving process, until it is gone."""
        with self.lock:
            line = self.line = Connection(connection, "the serving shard", self.message.size)
            if self.over:
                line.send(WORD.pack(OVER))
                line.finish(FAREWELL_S)
                return
        try:
            kind, token, *_ = self.message.unpack(line.receive())
            if kind != HELLO or token != self.token:
                return
            for piece in self.pieces.values():
                piece.shard.journal.begin()
            self.logged = {group: {} for group in self.pieces}
            line.send(WORD.pack(TAKEN))
            while True:
                self._take(line, *self.message.unpack(line.receive()))
        except PeerLost:
            return
        finally:
            line.close()

    def _take(
        self, line: Connection, kind: int, group: int, has_version: int, count: int, wants: int, *words: int
    ) -> None:
        assert kind == RECORD
        record, shard, logged = unpacked(list(words)), self.pieces[group].shard, self.logged[group]
        newest, before = record.newest, record.before
        for vector in _version(shard, newest.row, newest.state) if has_version else []:
            line.receive_into(vector)
        if count >= 0:
            kept = shard.journal.append(_identities(line, count), logged.get(before.number, 0))
            logged |= {before.number: kept, newest.number: kept + count}
        for number in logged.keys() - {before.number, newest.number}:
            del logged[number]
        newest, before = (replace(version, logged=logged[version.number]) for version in (newest, before))
        shard.journal.commit(Record(newest, before, record.members))
        if wants:
            line.send(WORD.pack(TAKEN))


def _identities(line: Connection, count: int) -> list[PushIdentity]:
    if not count:
        return []
    words = torch.empty(8 * count)
    line.receive_into(words)
    rows = words.numpy().view(np.int64).reshape(count, 4).tolist()
    return [PushIdentity(epoch, first, last, group) for epoch, group, first, last in rows]


def _stop_replicating(shard: Shard) -> None:
    """Have a shard keep its journal on this node alone."""
    if isinstance(shard.journal, ReplicatedJournal):
        shard.journal.replicator.line.close()
        shard.journal = shard.journal.journal


def _version(shard: Shard, row: int, state: int) -> list[Tensor]:
    """Where a version lies: its row of the ring and its state, (n,) each, in an order that both sides keep."""
    states = shard.states[state]
    return [shard.ring[row], *(states[name] for name in sorted(states))]
