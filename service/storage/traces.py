"""The traces of a run: lists them and opens their files. Their names come from outside, and no link is followed."""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pydantic import BaseModel

from service.errors import TraceNotFound
from service.storage.plain_file import NotPlain, open_plain

FOLDER = "traces"
NAME = re.compile(r"([0-9]{4,9})-worker-([0-9]{1,9})-([0-9]{1,3})\.json\.gz")


class TraceView(BaseModel):
    """One trace."""

    name: str
    """Of its file, which is compressed with gzip."""
    worker: int
    """Whose steps, by the number in its name."""
    steps: int
    bytes: int
    written: float
    """Seconds since 1970."""


def traces(run_dir: Path) -> list[TraceView]:
    """The traces that a run has kept, oldest first."""
    try:
        with opened_traces(run_dir) as folder:
            found = [(match, _stat(name, folder)) for name in os.listdir(folder) if (match := NAME.fullmatch(name))]
    except OSError:  # there is none yet
        return []
    plain = sorted((int(match[1]), match, one) for match, one in found if one is not None)
    return [
        TraceView(name=match[0], worker=int(match[2]), steps=int(match[3]), bytes=one.st_size, written=one.st_mtime)
        for _, match, one in plain
    ]


def open_trace(run_dir: Path, name: str) -> BinaryIO:
    """Open the file of a trace. Raises TraceNotFound, also for a link or a name that leads elsewhere."""
    if not NAME.fullmatch(name):
        raise TraceNotFound(f"{name!r} is no name of a trace's file")
    try:
        with opened_traces(run_dir) as folder:
            return open_plain(name, folder)
    except NotPlain:
        raise TraceNotFound(f"{name!r} is no plain file") from None
    except OSError:
        raise TraceNotFound(f"there is no trace {name}; a run keeps its last ones, which the list shows") from None


@contextmanager
def opened_traces(run_dir: Path) -> Iterator[int]:
    """A descriptor of the folder with the traces. Raises OSError where there is none, also for a link."""
    above = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        folder = os.open(FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
    finally:
        os.close(above)
    try:
        yield folder
    finally:
        os.close(folder)


def _stat(name: str, folder: int) -> os.stat_result | None:
    """Of a plain file; None where there is none."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:  # it has just been removed
        return None
    return found if stat.S_ISREG(found.st_mode) else None
