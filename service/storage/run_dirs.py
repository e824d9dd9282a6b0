"""The run directories of jobs: where they are, and restored from storage if they are gone."""

import logging
import threading
from pathlib import Path

from service.database.job_store import Job, Store
from service.errors import ServiceError, StorageUnreachable
from service.status import append_status
from service.storage.mirror import Mirror
from trainers import EventLogReader

logger = logging.getLogger(__name__)


class RunDirs:
    """The run directories of all jobs of one service. All methods but `copy` and `check` block."""

    def __init__(self, store: Store, mirror: Mirror | None) -> None:
        """mirror: Keeps copies of runs, if there is a storage."""
        self.store = store
        self.mirror = mirror
        self.restoring = threading.Lock()
        self.missing: dict[str, str] = {}
        """Active jobs whose run directory cannot be restored yet, and why."""

    def find(self, job_id: str) -> Job:
        """A job whose run directory exists, unless there is none anywhere.

        Raises:
            JobNotFound: There is no such job.
            StorageUnreachable, CopyDamaged, StorageFull: Its run directory is gone and cannot be restored.
        """
        return self._restore(self.store.get(job_id))

    def restored(self, job: Job) -> Job | None:
        """The job, ready to be taken up; none while nobody knows what was in its run directory."""
        try:
            found = self._restore(job)
        except ServiceError as error:
            if job.id not in self.missing:
                logger.warning("job %s waits for its run directory: %s", job.id, error, extra={"job": job.id})
            self.missing[job.id] = str(error)
            return None
        self.missing.pop(job.id, None)
        return found

    def check(self, job_id: str) -> None:
        """Raise StorageUnreachable for a job that could not be taken up yet."""
        if job_id in self.missing:
            raise StorageUnreachable(self.missing[job_id])

    def copy(self, job: Job) -> None:
        """Have the run copied as it is now, if there is a storage."""
        if self.mirror is not None:
            self.mirror.look(job.id, job.run_dir)

    def _restore(self, job: Job) -> Job:
        if self.mirror is None or job.is_untouched or job.run_dir.exists():
            return job
        # Without its parent, the job ran on another machine.
        path = job.run_dir if job.run_dir.parent.exists() else self.mirror.runs_dir / job.id
        with self.restoring:
            if not self.mirror.restore(job.id, path):
                return job
            if job.state.is_terminal:
                _end_log(job, path)
            if path != job.run_dir:
                self.store.set_run_dir(job.id, path)
        return self.store.get(job.id)


def _end_log(job: Job, run_dir: Path) -> None:
    """Write the last state into the log of an ended job, if its copy is older than that."""
    events = [*EventLogReader(run_dir).read()]
    if not events or not events[-1].is_terminal:
        append_status(run_dir, job.status)
