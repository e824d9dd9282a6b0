"""What of a shard must outlive its process, and the journal that keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from trainers.parameter_server.push_identity import PushIdentity


@dataclass(frozen=True)
class SliceVersion:
    """Where a version of a slice lies, and what it was made of."""

    number: int
    row: int
    """Of the ring."""
    state: int
    """Which of the two states belongs to it."""
    examples: int
    learning_rate: float
    """Of the update that made it."""
    logged: int
    """Rows of the log with the identities that are applied in it."""


class WorkerRecord(NamedTuple):
    """A live worker."""

    worker: int
    clock: int
    is_admitted: bool = False
    """Whether its gradient was admitted to the step after the newest version (backup workers)."""


@dataclass(frozen=True)
class Record:
    """A shard between two updates."""

    newest: SliceVersion
    before: SliceVersion
    """The version before, still complete; the newest itself where that one is overwritten."""
    members: tuple[WorkerRecord, ...]


class Journal(Protocol):
    """Memory that outlives a shard's process, at whatever instruction that is killed."""

    def begin(self) -> None:
        """Forget what is there."""
        ...

    def pinned(self) -> dict[int, int]:
        """The rows that workers of a dead process still read: reader -> row of the ring."""
        ...

    def append(self, identities: Sequence[PushIdentity], logged: int) -> int:
        """Write identities behind the first `logged` rows of the log. They count once a record says so.

        Returns how many rows those before them are now: fewer, if they were merged to make room.
        """
        ...

    def commit(self, record: Record) -> None:
        """Replace the record: whoever reads finds the old one or the new one."""
        ...

    def pin(self, reader: int, row: int) -> None:
        """Note which row of the ring a reader reads."""
        ...

    def unpin(self, reader: int) -> None:
        """A reader reads no row any more."""
        ...


@dataclass(frozen=True)
class JournalContents:
    """The journal of a dead process."""

    record: Record
    rows: list[list[int]]
    """The log up to the newest version, as `IdentitySet.to_json` writes it."""
    pinned: dict[int, int]
    """Reader -> row of the ring."""


class NoJournal:
    """Keeps nothing: the shard is lost with its process."""

    def begin(self) -> None:
        pass

    def pinned(self) -> dict[int, int]:
        return {}

    def append(self, identities: Sequence[PushIdentity], logged: int) -> int:
        return logged

    def commit(self, record: Record) -> None:
        pass

    def pin(self, reader: int, row: int) -> None:
        pass

    def unpin(self, reader: int) -> None:
        pass
