"""The event log of a sweep, in which its driver reports on the trials and on the sweep."""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from service.status import Status
from service.sweeps.trial_store import TrialProgress, TrialRow, TrialState, TrialStore
from trainers import EventLog, Fence

PROGRESS_EVERY_S = 1.0


class SweepLog:
    """Written by one process at a time: the one that took the fence last."""

    def __init__(self, store: TrialStore) -> None:
        self.store = store
        self.fence = Fence.take(store.folder)
        self.journal = EventLog(store.folder)
        self.begun_s = time.monotonic()
        self.fraction_at_begin: float | None = None
        self.written: dict[str, Any] = {}
        """The last progress that was written."""
        self.written_s = 0.0
        self.states = {one.id: one.state for one in store.progress()}

    def state(self, status: Status) -> None:
        """Write the status of the sweep."""
        self._append("state", dict(status.data))

    def line(self, level: str, message: str) -> None:
        """Write a line for people."""
        self._append("log", {"level": level, "message": message})

    def trial(self, row: TrialRow, **figures: Any) -> None:
        """Write a trial's state and metrics."""
        self.states[row.id] = row.state
        fields = row.model_dump(mode="json", include={"number", "state", "reason", "message", "settings", "error"})
        self._append("trial", {"trial": row.id, **fields, "progress": row.fraction, **figures})

    def changes(self) -> None:
        """Write the trials whose state another process has changed: added ones, and ones cancelled while queued."""
        changed = [one.id for one in self.store.progress() if one.state is not self.states.get(one.id)]
        for row in filter(None, map(self.store.trial, changed)):
            self.trial(row)

    def progress(self, at_once: bool = False) -> None:
        """Write the progress of the sweep, if it has changed."""
        if not at_once and time.monotonic() - self.written_s < PROGRESS_EVERY_S:
            return
        self.written_s = time.monotonic()
        rows = self.store.progress()
        fraction = progress_of(rows, None if self.store.state.is_terminal else self.store.spec.most_trials)
        if self.fraction_at_begin is None:
            self.fraction_at_begin = fraction
        data = counts_of(rows) | {"progress": fraction}
        if data != self.written:
            self.written = data
            self._append("progress", data | {"eta_s": self._eta_s(fraction)})

    def close(self) -> None:
        """Flush to the disk and close."""
        self.journal.close()

    def _eta_s(self, fraction: float) -> float | None:
        done = fraction - (self.fraction_at_begin or 0.0)
        return None if done <= 0 else (1 - fraction) * (time.monotonic() - self.begun_s) / done

    def _append(self, event_type: Any, data: dict[str, Any]) -> None:
        self.fence.check()
        self.journal.append(event_type, data)


def progress_of(rows: Iterable[TrialRow | TrialProgress], most: int | None = None) -> float:
    """0 to 1: the mean over the trials of how much of each is done. most: How many there will be, if more are added."""
    fractions = [1.0 if row.state.has_ended else row.fraction for row in rows]
    return sum(fractions) / max(len(fractions), most or 0) if fractions else 0.0


def counts_of(rows: Sequence[TrialRow | TrialProgress]) -> dict[str, Any]:
    """The number of trials in each state, and in all."""
    return {"total": len(rows)} | {s.value.lower(): sum(row.state is s for row in rows) for s in TrialState}


def write_status(folder: Path, status: Status) -> None:
    """Write a status of the sweep that has no driver to write it."""
    log = SweepLog(TrialStore(folder))
    log.changes()
    log.progress(at_once=True)
    log.state(status)
    log.close()
