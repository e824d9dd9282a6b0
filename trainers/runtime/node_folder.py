"""A run's folder on a node, in memory that its processes share.

Its name contains the Ray session, so that two Rays on one machine may have runs with the same id. Every process that
uses the folder holds a lock on it. The kernel releases the lock when the process dies, so a folder that is not locked
was left by processes that were killed.

Only `node_folder` makes the folder, and a process calls that when it begins. Whoever still writes into it while the run
is ended finds it gone, and cannot bring it back.
"""

import fcntl
import hashlib
import os
import shutil
from contextlib import suppress
from pathlib import Path

import ray

from trainers.data.loading.files import remove_forsaken_files

SHARED_MEMORY = Path("/dev/shm")
LEAST_SHARED_MEMORY_BYTES = 1024**3
"""A shared-memory file system smaller than this (64 MB in a container by default) is not used."""

PREFIX = "millrace-run-"

_held: dict[Path, int] = {}
"""The folders that this process holds: the descriptors on which it has locked them."""


def where(job_id: str) -> Path:
    """The path of a run's folder, whether it exists or not. The same for all processes of the connected Ray."""
    session = ray.get_runtime_context().get_session_name()
    return _root() / f"{PREFIX}{job_id}-{hashlib.sha256(session.encode()).hexdigest()[:8]}"


def node_folder(job_id: str) -> Path:
    """The run's folder. It is made if need be, and locked until this process ends or cleans up."""
    path = where(job_id)
    while not _holds(path):
        if not path.exists():
            _clean_up_forsaken(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileNotFoundError):  # another process has removed it meanwhile: try again
            _release(path)
            _held[path] = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(_held[path], fcntl.LOCK_SH)
    return path


def cleanup(job_id: str) -> None:
    """Remove the run's folder on this node, if there is one."""
    path = where(job_id)
    _remove(path)
    _release(path)


def leave(job_id: str) -> None:
    """Hold the run's folder no more. It is removed if nobody else on this node does."""
    path = where(job_id)
    _release(path)
    _clean_up_forsaken(path.parent)


def _root() -> Path:
    large = SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).total >= LEAST_SHARED_MEMORY_BYTES
    return SHARED_MEMORY if large else Path("/tmp")


def _holds(path: Path) -> bool:
    """Whether this process has locked the folder that is there now, and not an earlier one of the same path."""
    try:
        return path in _held and os.path.samestat(os.stat(path), os.fstat(_held[path]))
    except FileNotFoundError:
        return False


def _release(path: Path) -> None:
    if path in _held:
        os.close(_held.pop(path))


def _remove(path: Path) -> None:
    """Remove a folder into which others may be writing. It is moved aside first, so that nothing comes in meanwhile."""
    aside = path.with_name(f"{path.name}-removed-{os.getpid()}")
    with suppress(FileNotFoundError):  # another process was first
        path.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)


def _clean_up_forsaken(root: Path) -> None:
    """Remove the folders, of any Ray, that no process has locked, and the files of loader processes that are gone."""
    remove_forsaken_files()
    for path in root.glob(f"{PREFIX}*"):
        with suppress(OSError):  # in use, removed already, or another user's
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(path)
            finally:
                os.close(descriptor)
