"""A shard's journal in mapped files: what one process wrote the next one reads, wherever the first was killed.

A record is written into the other of two slots, and then one byte is changed, so that one of them is always complete.
What the kernel holds of a mapped file survives the process, though not the node.

    <path>          the byte, the two slots
    <path>-pins     which reader reads which row
    <path>-log-<n>  rows of epoch, group, first, last; a full log is merged into the next file
"""

import struct
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainers.links.mapped import BYTES, MappedFile
from trainers.parameter_server.push_identity import IdentitySet, PushIdentity
from trainers.parameter_server.record import JournalContents, NoJournal, Record, SliceVersion, WorkerRecord

LEAST_ROWS = 2**15
"""Identities in a log file, at 32 bytes each."""

VERSION = 6  # words of one
NOBODY = -1


class PinJournal(NoJournal):
    """Keeps only which rows are read, so that a shard which begins anew does not write to them."""

    def __init__(self, path: Path, num_workers: int) -> None:
        """num_workers: how many may be connected at a time."""
        self.pins = _mapped(path.with_name(f"{path.name}-pins"), 2 * num_workers).reshape(num_workers, 2)  # reader, row
        self.pin_of: dict[int, int] = {}  # reader -> which of the pins is its

    def begin(self) -> None:
        """Forget what is there."""
        self.pins[:] = NOBODY

    def pinned(self) -> dict[int, int]:
        """Which rows are read, also as a dead process noted it: reader -> row."""
        self.pin_of = {int(row[0]): pin for pin, row in enumerate(self.pins) if row[0] != NOBODY}
        return {reader: int(self.pins[pin, 1]) for reader, pin in self.pin_of.items()}

    def pin(self, reader: int, row: int) -> None:
        pin = self.pin_of.get(reader)
        if pin is None:
            pin = self.pin_of[reader] = next(i for i in range(len(self.pins)) if self.pins[i, 0] == NOBODY)
            self.pins[pin, 1] = row
            self.pins[pin, 0] = reader
        self.pins[pin, 1] = row

    def unpin(self, reader: int) -> None:
        self.pins[self.pin_of.pop(reader), 0] = NOBODY


class ShardJournal(PinJournal):
    """The journal of one shard's part of one group of parameters."""

    def __init__(self, path: Path, num_workers: int) -> None:
        super().__init__(path, num_workers)
        self.path = path
        slot = 1 + num_words(num_workers)
        words = _mapped(path, 1 + 2 * slot)
        self.switch = words[:1].view(np.uint8)[:1]  # 0: nothing was committed; else 1 + the slot that counts
        self.slots = words[1:].reshape(2, slot)
        self.log: NDArray[np.int64] = np.empty((0, 4), np.int64)
        self.log_number = 0
        self.outdated: Path | None = None

    def begin(self) -> None:
        super().begin()
        self.switch[0] = 0
        self._open_log(0, LEAST_ROWS)

    def read(self) -> JournalContents | None:
        """What was committed last; None where nothing was."""
        if not self.switch[0]:
            return None
        words = self.slots[self.switch[0] - 1].tolist()
        record = unpacked(words[1:])
        self._open_log(words[0], 0)
        return JournalContents(record, self.log[: record.newest.logged].tolist(), self.pinned())

    # -- as the shard asks ----------------------------------------------------------------------------------------

    def append(self, identities: Sequence[PushIdentity], logged: int) -> int:
        if not identities:
            return logged
        if logged + len(identities) > len(self.log):
            logged = self._merge(logged, len(identities))
        self.log[logged : logged + len(identities)] = [(i.epoch, i.group, i.first, i.last) for i in identities]
        return logged

    def commit(self, record: Record) -> None:
        words = [self.log_number, *packed(record)]
        other = 1 if self.switch[0] == 1 else 0
        self.slots[other, : len(words)] = words
        self.switch[0] = 1 + other  # a single byte: it is the old one or the new one
        if self.outdated is not None:
            with suppress(FileNotFoundError):
                self.outdated.unlink()
            self.outdated = None

    # -- the log --------------------------------------------------------------------------------------------------

    def _merge(self, logged: int, more: int) -> int:
        """Go on in a new file with room for so many more, in which neighbours are one row."""
        merged = IdentitySet.from_json(self.log[:logged].tolist()).to_json()
        self.outdated = self._log_path(self.log_number)
        self._open_log(self.log_number + 1, max(LEAST_ROWS, 2 * (len(merged) + more)))
        self.log[: len(merged)] = np.array(merged, np.int64).reshape(-1, 4)
        return len(merged)

    def _open_log(self, number: int, least_rows: int) -> None:
        path = self._log_path(number)
        rows = max(least_rows, path.stat().st_size // 32 if path.exists() else 0)
        self.log, self.log_number = _mapped(path, 4 * rows).reshape(rows, 4), number

    def _log_path(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}-log-{number}")


def num_words(num_workers: int) -> int:
    """Of a record with so many members at the most."""
    return 1 + 2 * VERSION + 3 * num_workers


def packed(record: Record) -> list[int]:
    """A record in so many words of 8 bytes, or fewer."""
    members = chain.from_iterable(record.members)  # as many as there are workers: this is done at every update
    return [len(record.members), *_words(record.newest), *_words(record.before), *members]


def unpacked(words: list[int]) -> Record:
    """What `packed` made; whatever stands behind it does not count."""
    newest, before = (_version(words[1 + i * VERSION :]) for i in (0, 1))
    rest = words[1 + 2 * VERSION :]
    members = tuple(WorkerRecord(rest[3 * i], rest[3 * i + 1], bool(rest[3 * i + 2])) for i in range(words[0]))
    return Record(newest, before, members)


def _mapped(path: Path, words: int) -> NDArray[np.int64]:
    """(words,) int64 in a mapped file."""
    return np.frombuffer(MappedFile(path, 1, words * 8 // BYTES).map, np.int64, words)


def _words(version: SliceVersion) -> list[int]:
    (rate,) = struct.unpack("q", struct.pack("d", version.learning_rate))
    return [version.number, version.row, version.state, version.examples, rate, version.logged]


def _version(words: list[int]) -> SliceVersion:
    number, row, state, examples, rate, logged = words[:VERSION]
    return SliceVersion(number, row, state, examples, struct.unpack("d", struct.pack("q", rate))[0], logged)
