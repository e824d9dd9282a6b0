"""Keeps the copies of all runs up to date, in a thread of its own that nothing waits for."""

import logging
import random
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from service.errors import StorageUnreachable
from service.storage.manifest import ours
from service.storage.object_storage import Storage
from service.storage.restore import restore
from service.storage.upload import Stopped, Upload

LOOK_S = 5.0
"""Between two looks at the active runs."""
RETRY_S = (1.0, 60.0)
"""The first pause after the storage did not answer, and the longest one."""
STOP_WITHIN_S = 10.0
REMOVED = ".removed"
"""A folder beside the run directories, with an empty file for each run whose copy must still be removed."""

logger = logging.getLogger(__name__)


class Mirror:
    """The runs of one service and their copies. What is left to do is found by comparison, so a service may end at any
    moment."""

    def __init__(self, storage: Storage, runs_dir: Path, look_s: float = LOOK_S) -> None:
        self.storage = storage
        self.runs_dir = runs_dir
        self.look_s = look_s
        self.due: dict[str, tuple[Path, bool]] = {}
        """Job -> run directory, and whether the last, short part of its log is copied too."""
        self.trouble = ""
        """Why the storage cannot be used now."""
        self.failed: dict[str, str] = {}
        """Jobs whose run directories cannot be read, and why."""
        self.working = ""
        self.is_marked = False
        self.lock = threading.Lock()  # of `due`
        self.woken = threading.Event()
        self.stopping = threading.Event()
        self.thread: threading.Thread | None = None

    def start(self, active: Callable[[], Mapping[str, Path]]) -> None:
        """Begin. active: The jobs that have not ended and their run directories."""
        self.thread = threading.Thread(target=self._run, args=(active,), name="mirror", daemon=True)
        self.thread.start()

    def close(self) -> None:
        """Stop. The next service finds what is not copied yet."""
        self.stopping.set()
        self.woken.set()
        if self.thread is not None:
            self.thread.join(STOP_WITHIN_S)

    def look(self, job_id: str, run_dir: Path) -> None:
        """Copy a run as it is now, with its whole log. Returns at once; calling it twice does no harm."""
        self._enqueue(job_id, run_dir, True)
        self.woken.set()

    def forget(self, job_id: str) -> None:
        """Remove a job's copy, now or when the storage answers again, even after a restart."""
        (self.runs_dir / REMOVED).mkdir(parents=True, exist_ok=True)
        (self.runs_dir / REMOVED / job_id).touch()
        self.woken.set()

    def restore(self, job_id: str, run_dir: Path) -> bool:
        """Restore a run directory that is gone. Blocks. Returns whether there is one now.

        Raises:
            StorageUnreachable, CopyDamaged, StorageFull: It cannot be restored.
        """
        if run_dir.exists():
            return True
        if (self.runs_dir / REMOVED / job_id).exists():
            return False
        if self.trouble:  # the thread finds out when that has passed
            raise StorageUnreachable(self.trouble)
        if not restore(self.storage, job_id, run_dir):
            return False
        self.look(job_id, run_dir)
        logger.info("restored from %s", self.storage.url, extra={"job": job_id})
        return True

    def describe(self, job_id: str) -> str:
        """The state of a job's copy, as a sentence."""
        if job_id in self.failed:
            return f"cannot be copied: {self.failed[job_id]}"
        if self.trouble:
            return f"waits: {self.trouble}; training goes on, and the copy follows"
        with self.lock:
            waits = job_id in self.due or job_id == self.working
        return f"{'is being copied' if waits else 'copied'} to {self.storage.url}/{job_id}"

    @property
    def num_due(self) -> int:
        """The number of runs that wait to be copied."""
        with self.lock:
            return len(self.due)

    def _run(self, active: Callable[[], Mapping[str, Path]]) -> None:
        attempts = 0
        while not self.stopping.is_set():
            self.woken.wait(self.look_s)
            self.woken.clear()
            for job_id, run_dir in active().items():
                self._enqueue(job_id, run_dir, False)
            try:
                self._copy_due()
            except Stopped:
                return
            except Exception as error:
                if isinstance(error, StorageUnreachable):
                    self._note(str(error))
                else:
                    logger.exception("could not keep copies up to date")
                pause_s = min(RETRY_S[1], RETRY_S[0] * 2 ** min(attempts, 10))
                attempts += 1
                self.stopping.wait(pause_s * random.uniform(0.5, 1.0))
                self.woken.set()
            else:
                attempts = 0

    def _copy_due(self) -> None:
        """Do everything that is due now."""
        if not self.is_marked:
            self.storage.mark()
            self.is_marked = True
        elif self.trouble:
            self.storage.check_mark()
        self._note("")
        self._remove_forgotten()
        with self.lock:
            names = list(self.due)
        for job_id in names:
            with self.lock:
                run_dir, with_tail = self.due.pop(job_id)
                self.working = job_id
            try:
                if not self._copy(job_id, run_dir, with_tail):
                    self._enqueue(job_id, run_dir, with_tail)
            except BaseException:
                self._enqueue(job_id, run_dir, with_tail)
                raise
            finally:
                self.working = ""

    def _enqueue(self, job_id: str, run_dir: Path, with_tail: bool) -> None:
        with self.lock:
            self.due[job_id] = run_dir, with_tail or self.due.get(job_id, (run_dir, False))[1]

    def _copy(self, job_id: str, run_dir: Path, with_tail: bool) -> bool:
        """Bring one copy up to date. Returns False if the run changed meanwhile and must be looked at again."""
        self.failed.pop(job_id, None)
        try:
            Upload(self.storage, job_id, run_dir, self.stopping.is_set).run(with_tail)
        except (StorageUnreachable, Stopped):
            raise
        except FileNotFoundError:
            return not run_dir.exists()
        except Exception as error:  # one unreadable run must not keep the others from being copied
            self.failed[job_id] = str(error)
            logger.exception("cannot copy %s", run_dir, extra={"job": job_id})
        return True

    def _remove_forgotten(self) -> None:
        folder = self.runs_dir / REMOVED
        for path in folder.iterdir() if folder.is_dir() else ():
            self.storage.remove(path.name, ours(self.storage.sizes(path.name)))
            path.unlink()

    def _note(self, trouble: str) -> None:
        """Remember whether the storage can be used, and log a change."""
        if trouble and not self.trouble:
            logger.warning("%s; training goes on, and runs are copied when it answers again", trouble)
        elif self.trouble and not trouble:
            logger.info("%s answers again", self.storage.url)
        self.trouble = trouble
