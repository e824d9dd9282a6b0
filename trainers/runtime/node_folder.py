"""A run's folder on a node, in memory that its processes share.

Its name says of which Ray the run is, so that two of them on one machine may have runs of the same id. Whoever uses it
holds a lock on it; the kernel lets go when the holder dies, so one that nobody holds is what killed processes left.
"""

import fcntl
import hashlib
import os
import shutil
from contextlib import suppress
from pathlib import Path

import ray

SHARED_MEMORY = Path("/dev/shm")
LEAST_SHARED_MEMORY_BYTES = 1024**3
"""A shared-memory file system smaller than this (64 MB in a container by default) is not used."""

PREFIX = "millrace-run-"

_held: dict[Path, int] = {}
"""The folders that this process holds: the descriptors on which it has locked them."""


def where(job_id: str) -> Path:
    """The path of a run's folder, whether it is there or not. The same for all processes of the connected Ray."""
    session = ray.get_runtime_context().get_session_name()
    return _root() / f"{PREFIX}{job_id}-{hashlib.sha256(session.encode()).hexdigest()[:8]}"


def node_folder(job_id: str) -> Path:
    """The run's folder, made if need be and held for as long as this process lives or until it sweeps."""
    path = where(job_id)
    while not _holds(path):
        if not path.exists():
            _sweep_forsaken(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileNotFoundError):  # swept between the two lines: once more
            _release(path)
            _held[path] = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(_held[path], fcntl.LOCK_SH)
    return path


def sweep(job_id: str) -> None:
    """Remove the run's folder on this node, if there is one."""
    path = where(job_id)
    shutil.rmtree(path, ignore_errors=True)
    _release(path)


def _root() -> Path:
    large = SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).total >= LEAST_SHARED_MEMORY_BYTES
    return SHARED_MEMORY if large else Path("/tmp")


def _holds(path: Path) -> bool:
    """Whether this process holds the folder that lies there now, and not one that lay there before."""
    try:
        return path in _held and os.path.samestat(os.stat(path), os.fstat(_held[path]))
    except FileNotFoundError:
        return False


def _release(path: Path) -> None:
    if path in _held:
        os.close(_held.pop(path))


def _sweep_forsaken(root: Path) -> None:
    """Remove the folders, of any Ray, that no process holds."""
    for path in root.glob(f"{PREFIX}*"):
        with suppress(OSError):  # held, gone, or another user's
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)
