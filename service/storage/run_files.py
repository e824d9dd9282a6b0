"""The files of a run directory that storage has copies of: which there are, and in which version. Follows no links."""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from service.checkpoints import opened, steps
from service.errors import CheckpointNotFound
from service.storage.manifest import FILE

LOG = "events.jsonl"
MODEL = "model.safetensors"


class Stamp(NamedTuple):
    """One version of a file. A file that is replaced is another inode; what only grows changes its size."""

    inode: int
    bytes: int
    changed_ns: int


class RunFiles(NamedTuple):
    """What there is at one moment."""

    log_bytes: int
    files: dict[str, Stamp]
    """By their paths in the run directory; a checkpoint is in it whole or not at all."""


def run_files(run_dir: Path) -> RunFiles:
    """What a run directory has now. Raises FileNotFoundError where there is none."""
    found: dict[str, Stamp] = {}
    with _folder(run_dir) as folder:
        log, model = _stamp(LOG, folder), _stamp(MODEL, folder)
    if model is not None:
        found[MODEL] = model
    for step in steps(run_dir):
        found |= _checkpoint(run_dir, step)
    return RunFiles(0 if log is None else log.bytes, found)


def open_run_file(run_dir: Path, name: str, stamp: Stamp | None = None) -> BinaryIO:
    """One of them, in this version where one is given. Raises FileNotFoundError where it has gone or been replaced."""
    *above, last = name.split("/")
    try:
        with opened(run_dir, above[1]) if above else _folder(run_dir) as folder:
            file = os.fdopen(os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder), "rb")
    except CheckpointNotFound as error:
        raise FileNotFoundError(str(error)) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FileNotFoundError(f"{name} is a link") from None
        raise
    told = os.fstat(file.fileno())
    if not stat.S_ISREG(told.st_mode) or (stamp is not None and _as_stamp(told) != stamp):
        file.close()
        raise FileNotFoundError(f"{name} has just been replaced, or is no plain file")
    return file


def _checkpoint(run_dir: Path, step: str) -> dict[str, Stamp]:
    """A checkpoint's files; none if it is being removed."""
    try:
        with opened(run_dir, step) as folder:
            stamps = {f"checkpoints/{step}/{name}": _stamp(name, folder) for name in os.listdir(folder)}
            with opened(run_dir, step) as again:  # it leaves its place before its files go
                is_there = os.path.samestat(os.fstat(folder), os.fstat(again))
    except CheckpointNotFound:
        return {}
    found = {name: stamp for name, stamp in stamps.items() if stamp is not None and FILE.fullmatch(name)}
    return found if is_there and f"checkpoints/{step}/position.json" in found else {}


def _stamp(name: str, folder: int) -> Stamp | None:
    try:
        told = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return _as_stamp(told) if stat.S_ISREG(told.st_mode) else None


def _as_stamp(told: os.stat_result) -> Stamp:
    return Stamp(told.st_ino, told.st_size, told.st_mtime_ns)


@contextlib.contextmanager
def _folder(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
