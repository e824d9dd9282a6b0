"""The sweep's own event log: what its driver tells of the trials and of the whole."""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from service.sweeps.ledger import Ledger, Standing, TrialRow, TrialState
from trainers import Fence, Journal, State

TELL_EVERY_S = 1.0


class SweepLog:
    """Written by one process at a time; whoever took the fence last."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.fence = Fence.take(ledger.folder)
        self.journal = Journal(ledger.folder)
        self.begun_s = time.monotonic()
        self.share_at_begin: float | None = None
        self.told: dict[str, Any] = {}
        self.told_s = 0.0
        self.states = {one.id: one.state for one in ledger.standing()}

    def state(self, state: State, reason: str, message: str) -> None:
        """The sweep's state."""
        self._append("state", {"state": state.value, "reason": reason, "message": message})

    def line(self, level: str, message: str) -> None:
        """A line for people."""
        self._append("log", {"level": level, "message": message})

    def trial(self, row: TrialRow, **figures: Any) -> None:
        """A trial's state and figures."""
        self.states[row.id] = row.state
        told = row.model_dump(mode="json", include={"number", "state", "reason", "message", "settings", "error"})
        self._append("trial", {"trial": row.id, **told, "progress": row.share, **figures})

    def changes(self) -> None:
        """Trials whose state others changed: added, or cancelled while they waited."""
        changed = [one.id for one in self.ledger.standing() if one.state is not self.states.get(one.id)]
        for row in filter(None, map(self.ledger.trial, changed)):
            self.trial(row)

    def progress(self, at_once: bool = False) -> None:
        """How far the sweep is, where that has changed."""
        if not at_once and time.monotonic() - self.told_s < TELL_EVERY_S:
            return
        self.told_s = time.monotonic()
        rows = self.ledger.standing()
        share = progress_of(rows)
        if self.share_at_begin is None:
            self.share_at_begin = share
        data = counts_of(rows) | {"progress": share}
        if data != self.told:
            self.told = data
            self._append("progress", data | {"eta_s": self._eta_s(share)})

    def close(self) -> None:
        """Flush to the disk and close."""
        self.journal.close()

    def _eta_s(self, share: float) -> float | None:
        done = share - (self.share_at_begin or 0.0)
        return None if done <= 0 else (1 - share) * (time.monotonic() - self.begun_s) / done

    def _append(self, event_type: Any, data: dict[str, Any]) -> None:
        self.fence.check()
        self.journal.append(event_type, data)


def progress_of(rows: Iterable[TrialRow | Standing]) -> float:
    """0 to 1: the mean over the trials of how much of each is done."""
    shares = [1.0 if row.state.has_ended else row.share for row in rows]
    return sum(shares) / len(shares) if shares else 0.0


def counts_of(rows: Sequence[TrialRow | Standing]) -> dict[str, Any]:
    """How many trials there are in each state, and in all."""
    return {"total": len(rows)} | {s.value.lower(): sum(row.state is s for row in rows) for s in TrialState}


def tell_state(folder: Path, state: State, reason: str, message: str) -> None:
    """A state that no driver is there to tell."""
    log = SweepLog(Ledger(folder))
    log.changes()
    log.progress(at_once=True)
    log.state(state, reason, message)
    log.close()
