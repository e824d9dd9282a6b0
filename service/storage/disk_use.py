"""How many bytes the run folders of each project hold."""

import asyncio
import logging
import os
import time
from collections import Counter

from sqlalchemy import select

from service.database.job_store import Store
from service.database.tables import JobRow

SETTLES_S = 120.0
"""How long after its end files of a job may still come and go. Its folder is measured once at its end, and once more
after that."""

_FOLDERS = select(JobRow.id, JobRow.project, JobRow.run_dir, JobRow.finished)

logger = logging.getLogger(__name__)


class DiskUse:
    """Measures the folders of all jobs, those of ended jobs twice."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.ended: dict[str, tuple[int, bool]] = {}
        """Bytes of jobs that have ended, and whether that is what they stay at."""

    async def keep(self, found: dict[str, int], every_s: float) -> None:
        """Again and again: measure, and write what was found into a mapping."""
        while True:
            try:
                measured = await asyncio.to_thread(self.measure)
            except Exception:  # the database may be back in a moment
                logger.exception("could not measure the run folders")
            else:
                found.clear()
                found.update(measured)
            await asyncio.sleep(every_s)

    def measure(self) -> dict[str, int]:
        """Project -> bytes, the trials of its sweeps among them. It blocks."""
        found, ended, settled_by = Counter[str](), dict[str, tuple[int, bool]](), time.time() - SETTLES_S
        with self.store.engine.connect() as connection:
            rows = connection.execute(_FOLDERS).all()
        for job_id, project, run_dir, finished in rows:
            is_settled = finished is not None and finished < settled_by
            size, was_settled = self.ended.get(job_id, (None, False))
            if size is None or was_settled < is_settled:
                size = folder_bytes(run_dir)
            if finished is not None:
                ended[job_id] = size, is_settled
            found[project] += size
        self.ended = ended
        return dict(found)


def folder_bytes(folder: str) -> int:
    """The sizes of all files in a folder, and in those in it; what goes away meanwhile counts nothing."""
    total, ahead = 0, [folder]
    while ahead:
        try:
            with os.scandir(ahead.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        ahead.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue
    return total
