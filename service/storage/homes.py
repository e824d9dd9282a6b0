"""The run directories of jobs: where they are, and brought back where they are gone."""

import logging
import threading
from pathlib import Path

from service.errors import ServiceError, StorageUnreachable
from service.storage.mirror import Mirror
from service.store import Job, Store
from trainers import Journal, JournalReader

logger = logging.getLogger(__name__)


class Homes:
    """Of all jobs of one service. All but `copy` and `check` block."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.mirror: Mirror | None = None
        """What keeps copies of runs, where there is a storage; set before the start."""
        self.restoring = threading.Lock()
        self.away: dict[str, str] = {}
        """Jobs that have not ended, whose run directory cannot be brought back yet, and why."""

    def find(self, job_id: str) -> Job:
        """A job whose run directory is there, if there is one anywhere.

        Raises:
            JobNotFound: There is no such job.
            StorageUnreachable, CopyDamaged, StorageFull: Its run directory is gone and cannot be brought back.
        """
        return self._brought(self.store.get(job_id))

    def ready(self, job: Job) -> Job | None:
        """The job, which can be taken up; none where nobody can tell yet what was in its run directory."""
        try:
            found = self._brought(job)
        except ServiceError as error:
            if job.id not in self.away:
                logger.warning("job %s waits for its run directory: %s", job.id, error, extra={"job": job.id})
            self.away[job.id] = str(error)
            return None
        self.away.pop(job.id, None)
        return found

    def check(self, job_id: str) -> None:
        """Raise StorageUnreachable for a job that could not be taken up yet."""
        if job_id in self.away:
            raise StorageUnreachable(self.away[job_id])

    def copy(self, job: Job) -> None:
        """Have the run as it is now copied, if there is a storage."""
        if self.mirror is not None:
            self.mirror.look(job.id, job.run_dir)

    def _brought(self, job: Job) -> Job:
        if self.mirror is None or job.run_dir.exists():
            return job
        place = job.run_dir if job.run_dir.parent.exists() else self.mirror.runs_dir / job.id  # it was another machine
        with self.restoring:
            if not self.mirror.bring_back(job.id, place):
                return job
            if job.state.is_terminal:
                _end_log(job, place)
            if place != job.run_dir:
                self.store.rehome(job.id, place)
        return self.store.get(job.id)


def _end_log(job: Job, run_dir: Path) -> None:
    """Give the log of an ended job the end that its copy had not heard of, so that whoever reads it knows."""
    events = [*JournalReader(run_dir).read()]
    if not events or not events[-1].is_terminal:
        journal = Journal(run_dir)
        journal.append("state", {"state": job.state, "reason": job.reason, "message": job.message})
        journal.close()
