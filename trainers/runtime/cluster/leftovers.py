"""What processes of ours that were killed have left on this machine: removed by the next one that begins.

A process that ends by itself removes its own. Who was killed is told by locks, which the kernel releases, and by the
numbers of processes in names of files.
"""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil

from trainers.data.loading.files import remove_forsaken_files

PREFIX = "millrace-"
OWNER = ".owner"
"""Locked by the process that a folder belongs to."""
UNLOCKED = ".owner.new"
"""What that file is called until it is locked."""
LONGEST_TEMP = 40  # bytes; Ray adds 62 of its own, and a unix socket's path holds 107

_held: dict[Path, int] = {}
"""By folder: the descriptor on which this process has locked it."""


def temporary_folder() -> Path:
    """A new folder for a Ray."""
    return Path(tempfile.mkdtemp(prefix=PREFIX, dir=_base()))


def own_temporary_folder() -> Path:
    """The same for a Ray that ends with this process. Removes what others have left that did not get to it."""
    remove_leftovers()
    path = temporary_folder()
    _held[path] = os.open(path / UNLOCKED, os.O_WRONLY | os.O_CREAT, 0o600)
    fcntl.flock(_held[path], fcntl.LOCK_EX)
    (path / UNLOCKED).rename(path / OWNER)  # unlocked, it would be taken for left behind
    return path


def remove_own(path: Path) -> None:
    """Remove such a folder; its Ray has ended."""
    shutil.rmtree(path, ignore_errors=True)
    if path in _held:
        os.close(_held.pop(path))


def remove_leftovers() -> None:
    """End the Rays whose owners were killed, and remove their folders; likewise the files of loader processes."""
    for owner in Path(_base()).glob(f"{PREFIX}*/{OWNER}"):
        with suppress(OSError):  # in use, removed already, or another user's
            descriptor = os.open(owner, os.O_WRONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _end_ray(owner.parent)
                shutil.rmtree(owner.parent, ignore_errors=True)
            finally:
                os.close(descriptor)
    remove_forsaken_files()


def _end_ray(folder: Path) -> None:
    """Kill the processes of the Ray that has this folder; each of them names it in its command line."""
    for process in psutil.process_iter(["cmdline"]):
        if any(str(folder) in argument for argument in process.info["cmdline"] or ()):
            with suppress(psutil.Error):
                process.kill()


def _base() -> str:
    base = tempfile.gettempdir()
    return base if len(base) + len(PREFIX) + 9 <= LONGEST_TEMP else "/tmp"
