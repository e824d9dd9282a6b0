"""Which trials of a sweep have their turn, where a service has them wait in the queue of its jobs.

The service gives a turn, and the driver begins only trials that have one. A sweep without a service takes none: its
driver begins what fits.
"""

import json
from collections.abc import Collection

from service.sweeps.trial_store import TrialProgress, TrialState, TrialStore
from trainers import State

TABLE = "CREATE TABLE IF NOT EXISTS turns (id TEXT PRIMARY KEY)"


class Turns:
    """The turns of one sweep, in its database file."""

    def __init__(self, store: TrialStore) -> None:
        self.store = store

    def require(self, are_needed: bool) -> None:
        """Whether trials need a turn from now on."""
        with self.store.writing() as db:
            db.execute(TABLE)
            db.execute("INSERT OR REPLACE INTO sweep VALUES ('turns', ?)", (json.dumps(are_needed),))

    @property
    def are_needed(self) -> bool:
        """Whether a service gives turns to the trials."""
        with self.store.reading() as db:
            row = db.execute("SELECT value FROM sweep WHERE name = 'turns'").fetchone()
        return row is not None and bool(json.loads(row[0]))

    @property
    def given(self) -> frozenset[str]:
        """The trials that may run, or run."""
        with self.store.reading() as db:
            return frozenset(trial for (trial,) in db.execute("SELECT id FROM turns"))

    def give(self, trial: str) -> None:
        """It may run. Nothing if it does not wait any more."""
        with self.store.writing() as db:
            db.execute("INSERT OR IGNORE INTO turns SELECT id FROM trials WHERE id = ? AND state = 'QUEUED'", (trial,))

    def withdraw(self) -> None:
        """All wait for their turn again."""
        if self.are_needed:
            with self.store.writing() as db:
                db.execute("DELETE FROM turns")

    def excluded(self, trials: Collection[TrialProgress]) -> set[str]:
        """Those of these trials that have to wait for their turn."""
        return {one.id for one in trials} - self.given if self.are_needed else set()

    @property
    def leave_work(self) -> bool:
        """Whether there is something for a driver to do: a trial that may run, or the end of the sweep."""
        trials = self.store.progress()
        waiting = {one.id for one in trials if one.state is TrialState.QUEUED}
        if not waiting or self.store.state is State.CANCELLING or not self.are_needed:
            return True
        is_running = any(one.state is TrialState.RUNNING for one in trials)
        return is_running or not waiting.isdisjoint(self.given)
