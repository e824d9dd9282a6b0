"""Removes jobs that have ended, with their files: when somebody asks for it, and when their time is over."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from service.database.job_store import Job, Store
from service.jobs.metric_series import SeriesCache
from service.storage.mirror import Mirror


class Removal:
    """Removes the jobs of one service. All calls block."""

    def __init__(
        self, store: Store, series: SeriesCache, mirror: Mirror | None, runs_dir: Path, keep_s: float | None
    ) -> None:
        """keep_s: How long jobs that say nothing else are kept after their end; None: always."""
        self.store = store
        self.series = series
        self.mirror = mirror
        self.runs_dir = runs_dir
        self.keep_s = keep_s
        self.collect: Callable[[], object] = lambda: None
        """Takes from the logs what webhooks are to be told: once a log is gone, nobody could tell it."""

    def remove_expired(self, now: float) -> None:
        """Remove the ended jobs whose time is over."""
        while found := self.store.expired(now, self.keep_s):
            self.remove(found)

    def remove(self, jobs: Sequence[Job]) -> None:
        """Remove ended jobs: first their files, then their rows in the store. What was forked from them stays."""
        self.collect()
        for job in jobs:
            if job.run_dir == self.runs_dir / job.id:  # and no path that others wrote into the database
                if self.mirror is not None:
                    self.mirror.forget(job.id)
                shutil.rmtree(job.run_dir, ignore_errors=True)
            self.series.forget(job.run_dir)
            self.store.remove(job.id)
