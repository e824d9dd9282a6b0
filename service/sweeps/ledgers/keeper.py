"""Keeps the ledgers of a service's sweeps in its database, and their logs in its storage.

A ledger lies beside the sweep's driver, which must not wait for a database; where the folder is there, the ledger in it
knows best. The database has what it had a second ago, lists sweeps, and gives a ledger back whose folder is gone.
"""

import logging
import threading
from pathlib import Path
from typing import Any

from service.database.job_store import Store
from service.database.sweep_store import SweepStore
from service.errors import ServiceError
from service.storage.mirror import Mirror
from service.sweeps.ledgers.rows import sweep_values, trial_values, write_ledger
from service.sweeps.trial_store import TrialState, TrialStore

logger = logging.getLogger(__name__)


class LedgerKeeper:
    """Of one service. All methods block, and may be called from any thread."""

    def __init__(self, jobs: Store, mirror: Mirror | None) -> None:
        self.jobs = jobs
        self.mirror = mirror
        self.saved = SweepStore(jobs.engine, jobs.writer)
        self.stamps: dict[str, tuple[int, int]] = {}
        """Sweep -> its ledger's file when it was saved."""
        self.known: dict[str, dict[int, dict[str, Any]]] = {}
        """Sweep -> its trials as they were saved, by number."""
        self.lock = threading.Lock()

    def save(self, store: TrialStore) -> None:
        """Store what has changed in a ledger, if anything has."""
        sweep = store.folder.name
        with self.lock:
            found = store.path.stat()
            stamp = (found.st_mtime_ns, found.st_size)
            if self.stamps.get(sweep) == stamp:
                return
            known = self.known.setdefault(sweep, {})
            values, changed = sweep_values(store), trial_values(store, known)
            self.saved.save(sweep, values, changed)
            self.stamps[sweep] = stamp
            ended = any(TrialState(row["state"]).has_ended for row in changed.values())
            known |= {number: {name: row[name] for name in row if name != "job"} for number, row in changed.items()}
        if self.mirror is not None and (ended or not changed):  # with each end of a trial, and what the sweep is told
            self.mirror.look(sweep, store.folder)

    def forget(self, store: TrialStore) -> None:
        """Remove a sweep from the database and the storage."""
        sweep = store.folder.name
        with self.lock:
            self.saved.remove(sweep)
            self.stamps.pop(sweep, None)
            self.known.pop(sweep, None)
        if self.mirror is not None:
            self.mirror.forget(sweep)

    def restore(self, folder: Path) -> None:
        """Bring back the sweeps of the database that are not in the folder: log and trials from the storage, as far as
        they were copied; what a trial was in the middle of is trained again."""
        for sweep in self.saved.ids():
            store = TrialStore(folder / sweep)
            if not store.exists:
                try:
                    self._restore(store)
                except ServiceError as error:  # the next service tries again
                    logger.warning("sweep %s cannot be brought back: %s", sweep, error)

    def _restore(self, store: TrialStore) -> None:
        values, trials = self.saved.get(store.folder.name)
        if self.mirror is not None and not store.folder.exists():
            self.mirror.restore(store.folder.name, store.folder)
        known = self.jobs.run_dirs([row["id"] for row in trials])
        for row in trials:
            run_dir = store.run_dir(row["id"])
            if self.mirror is not None and row["starts"]:
                self.mirror.restore(row["id"], run_dir)
            if known.get(row["id"], run_dir) != run_dir:  # it ran on another machine
                self.jobs.set_run_dir(row["id"], run_dir)
        write_ledger(store, values, trials)
        logger.info("sweep %s is brought back from the database, with %d trials", store.folder.name, len(trials))
