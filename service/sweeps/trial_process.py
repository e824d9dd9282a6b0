"""The processes of trials must not outlive the driver that started them.

Ray ends them when it notices that their driver has died, which may take seconds. One that still ran then would take the
event log and the checkpoints from the process in which a new driver has begun the same trial. So each holds a lock for
as long as it lives, by which a new driver finds it; and it knows the number of its driver, so that one that starts too
late to be found ends by itself.
"""

import fcntl
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

import psutil

from service.sweeps.trial_store import TrialStore

FOLDER = "processes"
POLL_S = 0.02


class DriverReplaced(RuntimeError):
    """The driver that started this process has died, and another one runs the sweep."""


class TrialProcess:
    """This process, registered until it exits.

    driver: The number of the driver that started it, as `TrialStore.new_driver` returned it.
    """

    def __init__(self, store: TrialStore, driver: int) -> None:
        self.store = store
        self.driver = driver
        path = store.folder / FOLDER / str(os.getpid())
        path.parent.mkdir(exist_ok=True)
        self.file = path.open("w")  # open, and thereby locked, until the process exits
        fcntl.flock(self.file, fcntl.LOCK_EX)
        try:
            self.check()
        except DriverReplaced:
            self.file.close()
            raise

    def check(self) -> None:
        """Raise DriverReplaced if another driver runs the sweep by now. Called after the lock is taken: a driver
        changes the number before it looks for locks, so that it finds this process, or this process finds it."""
        if self.store.driver != self.driver:
            raise DriverReplaced(f"driver {self.store.driver} runs the sweep; {self.driver} started this process")


def end_orphans(store: TrialStore) -> None:
    """Kill the processes of trials that a dead driver has left on this node, and wait until they are gone."""
    for path in (store.folder / FOLDER).glob("[0-9]*"):
        with path.open("a") as file:
            while not _locked(file.fileno()):
                _kill(path)
                time.sleep(POLL_S)
        path.unlink(missing_ok=True)


def forget_processes(store: TrialStore) -> None:
    """Remove what the processes of a sweep that has ended were found by."""
    shutil.rmtree(store.folder / FOLDER, ignore_errors=True)


def _kill(path: Path) -> None:
    """Kill the process that a file is named after, if it holds the file. Where the folder lies on shared storage, the
    holder may live on another host, and its number may be somebody else's here; then Ray ends the holder."""
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        process = psutil.Process(int(path.name))
        if str(path.resolve()) in {file.path for file in process.open_files()}:
            process.kill()


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
