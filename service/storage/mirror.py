"""Keeps the copies of all runs up to date, in a thread of its own that nothing waits for."""

import logging
import random
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from service.errors import StorageUnreachable
from service.storage.manifest import ours
from service.storage.restore import restore
from service.storage.storage import Storage
from service.storage.upload import Stopped, Upload

LOOK_S = 5.0
"""Between two looks at the runs that go on."""
AGAIN_S = (1.0, 60.0)
"""The first pause after the storage did not answer, and the longest."""
STOP_WITHIN_S = 10.0
REMOVED = ".removed"
"""A folder beside the run directories, with an empty file for each run whose copy is still to be removed."""

logger = logging.getLogger(__name__)


class Mirror:
    """The runs of one service and their copies. What is still to be done is found again by comparison, so a service
    may end at any moment."""

    def __init__(self, storage: Storage, runs_dir: Path, look_s: float = LOOK_S) -> None:
        self.storage = storage
        self.runs_dir = runs_dir
        self.look_s = look_s
        self.live: Callable[[], Mapping[str, Path]] = dict
        """Jobs that have not ended and their run directories; set before the start."""
        self.due: dict[str, tuple[Path, bool]] = {}  # job -> run directory, and whether its log is to be copied whole
        self.trouble = ""
        """Why the storage cannot be used now."""
        self.failed: dict[str, str] = {}
        """Jobs whose run directories cannot be read, and why."""
        self.working = ""
        self.is_marked = False
        self.lock = threading.Lock()  # of `due`
        self.woken = threading.Event()
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, name="mirror", daemon=True)

    def start(self) -> None:
        """Begin."""
        self.thread.start()

    def close(self) -> None:
        """End; what is not copied yet is found again by the next service."""
        self.stopping.set()
        self.woken.set()
        self.thread.join(STOP_WITHIN_S)

    def look(self, job_id: str, run_dir: Path) -> None:
        """Copy a run as it is now, log and all. Returns at once; to say so twice does no harm."""
        self._put_back(job_id, run_dir, True)
        self.woken.set()

    def forget(self, job_id: str) -> None:
        """Remove a job's copy, now or when the storage answers again, whoever runs the service then."""
        (self.runs_dir / REMOVED).mkdir(parents=True, exist_ok=True)
        (self.runs_dir / REMOVED / job_id).touch()
        self.woken.set()

    def bring_back(self, job_id: str, run_dir: Path) -> bool:
        """Restore a run directory that is gone. Blocks. Returns whether there is one now.

        Raises:
            StorageUnreachable, CopyDamaged, StorageFull: As `restore` does.
        """
        if run_dir.exists():
            return True
        if (self.runs_dir / REMOVED / job_id).exists():
            return False
        if self.trouble:  # the thread finds out when that is over
            raise StorageUnreachable(self.trouble)
        if not restore(self.storage, job_id, run_dir):
            return False
        self.look(job_id, run_dir)
        logger.info("brought back from %s", self.storage.url, extra={"job": job_id})
        return True

    def told(self, job_id: str) -> str:
        """How a job's copy stands, as a sentence."""
        if job_id in self.failed:
            return f"cannot be copied: {self.failed[job_id]}"
        if self.trouble:
            return f"waits: {self.trouble}; training goes on, and the copy follows"
        with self.lock:
            waits = job_id in self.due or job_id == self.working
        return f"{'is being copied' if waits else 'copied'} to {self.storage.url}/{job_id}"

    @property
    def num_due(self) -> int:
        """Runs that wait to be copied."""
        with self.lock:
            return len(self.due)

    def _run(self) -> None:
        attempts = 0
        while not self.stopping.is_set():
            self.woken.wait(self.look_s)
            self.woken.clear()
            for job_id, run_dir in self.live().items():
                self._put_back(job_id, run_dir, False)
            try:
                self._work_off()
            except Stopped:
                return
            except Exception as error:
                if isinstance(error, StorageUnreachable):
                    self._say(str(error))
                else:
                    logger.exception("could not look after copies")
                pause_s = min(AGAIN_S[1], AGAIN_S[0] * 2 ** min(attempts, 10))
                attempts += 1
                self.stopping.wait(pause_s * random.uniform(0.5, 1.0))
                self.woken.set()
            else:
                attempts = 0

    def _work_off(self) -> None:
        """Everything that is due now."""
        if not self.is_marked:
            self.storage.mark()
            self.is_marked = True
        elif self.trouble:
            self.storage.check_mark()
        self._say("")
        self._remove_forgotten()
        with self.lock:
            names = list(self.due)
        for job_id in names:
            with self.lock:
                run_dir, whole = self.due.pop(job_id)
                self.working = job_id
            try:
                if not self._copy(job_id, run_dir, whole):
                    self._put_back(job_id, run_dir, whole)
            except BaseException:
                self._put_back(job_id, run_dir, whole)
                raise
            finally:
                self.working = ""

    def _put_back(self, job_id: str, run_dir: Path, whole: bool) -> None:
        with self.lock:
            self.due[job_id] = run_dir, whole or self.due.get(job_id, (run_dir, False))[1]

    def _copy(self, job_id: str, run_dir: Path, whole: bool) -> bool:
        """Bring one copy up to date. Returns False where the run changed meanwhile and is to be looked at again."""
        self.failed.pop(job_id, None)
        try:
            Upload(self.storage, job_id, run_dir, self.stopping.is_set).run(whole)
        except (StorageUnreachable, Stopped):
            raise
        except FileNotFoundError:
            return not run_dir.exists()
        except Exception as error:  # one run that cannot be read must not keep the others from being copied
            self.failed[job_id] = str(error)
            logger.exception("cannot copy %s", run_dir, extra={"job": job_id})
        return True

    def _remove_forgotten(self) -> None:
        folder = self.runs_dir / REMOVED
        for path in folder.iterdir() if folder.is_dir() else ():
            self.storage.remove(path.name, ours(self.storage.sizes(path.name)))
            path.unlink()

    def _say(self, trouble: str) -> None:
        """Note how the storage is, and tell the log when that changes."""
        if trouble and not self.trouble:
            logger.warning("%s; training goes on, and runs are copied when it answers again", trouble)
        elif self.trouble and not trouble:
            logger.info("%s answers again", self.storage.url)
        self.trouble = trouble
