"""The files of a run directory that are copied to storage, each with a stamp. Follows no links."""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from service.errors import CheckpointNotFound
from service.storage.checkpoints import opened, steps
from service.storage.manifest import FILE
from service.storage.traces import opened_traces, traces

LOG = "events.jsonl"
MODELS = ("model.safetensors", "best.safetensors", "raw.safetensors")
"""The finished model and the best one; where they are averages, the parameters as they are lie beside them."""


class Stamp(NamedTuple):
    """Identifies the content of a file: a replaced file has another inode, and one that grows another size."""

    inode: int
    bytes: int
    changed_ns: int


class RunFiles(NamedTuple):
    """The files at one moment."""

    log_bytes: int
    files: dict[str, Stamp]
    """Path in the run directory -> stamp. A checkpoint is in it completely or not at all."""


def run_files(run_dir: Path) -> RunFiles:
    """The files of a run directory now. Raises FileNotFoundError if there is no such directory."""
    with _folder(run_dir) as folder:
        log, *models = (_stamp(name, folder) for name in (LOG, *MODELS))
    found = {name: stamp for name, stamp in zip(MODELS, models, strict=True) if stamp is not None}
    for step in steps(run_dir):
        found |= _checkpoint(run_dir, step)
    found |= _traces(run_dir)
    return RunFiles(0 if log is None else log.bytes, found)


def open_run_file(run_dir: Path, name: str, stamp: Stamp | None = None) -> BinaryIO:
    """Open one of them. Raises FileNotFoundError if it is gone, or if its stamp is not the given one."""
    *above, last = name.split("/")
    try:
        with _above(run_dir, above) as folder:
            file = os.fdopen(os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder), "rb")
    except CheckpointNotFound as error:
        raise FileNotFoundError(str(error)) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FileNotFoundError(f"{name} is a link") from None
        raise
    found = os.fstat(file.fileno())
    if not stat.S_ISREG(found.st_mode) or (stamp is not None and _as_stamp(found) != stamp):
        file.close()
        raise FileNotFoundError(f"{name} has just been replaced, or is no plain file")
    return file


def _above(run_dir: Path, above: list[str]) -> contextlib.AbstractContextManager[int]:
    """A descriptor of the folder that the file is in."""
    if not above:
        return _folder(run_dir)
    return opened_traces(run_dir) if above[0] == "traces" else opened(run_dir, above[1])


def _traces(run_dir: Path) -> dict[str, Stamp]:
    """The files of the traces."""
    names = [trace.name for trace in traces(run_dir)]
    if not names:
        return {}
    with opened_traces(run_dir) as folder:
        stamps = {f"traces/{name}": _stamp(name, folder) for name in names}
    return {name: stamp for name, stamp in stamps.items() if stamp is not None}


def _checkpoint(run_dir: Path, step: str) -> dict[str, Stamp]:
    """The files of a checkpoint; none if it is being removed."""
    try:
        with opened(run_dir, step) as folder:
            stamps = {f"checkpoints/{step}/{name}": _stamp(name, folder) for name in os.listdir(folder)}
            with opened(run_dir, step) as again:  # its folder is renamed before its files are removed
                is_there = os.path.samestat(os.fstat(folder), os.fstat(again))
    except CheckpointNotFound:
        return {}
    found = {name: stamp for name, stamp in stamps.items() if stamp is not None and FILE.fullmatch(name)}
    return found if is_there and f"checkpoints/{step}/position.json" in found else {}


def _stamp(name: str, folder: int) -> Stamp | None:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return _as_stamp(found) if stat.S_ISREG(found.st_mode) else None


def _as_stamp(found: os.stat_result) -> Stamp:
    return Stamp(found.st_ino, found.st_size, found.st_mtime_ns)


@contextlib.contextmanager
def _folder(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
