"""What is made of data once and kept as files: in the node's shared memory, or on a disk where it is too large."""

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from trainers.data.node_lock import Note, alone_on_node

log = logging.getLogger(__name__)

HIDDEN = ".millrace"
"""The folder beside the data."""


def digest_of(what: object, files: list[Path]) -> str:
    """Names what is made of these files; another name once one of them has changed."""
    stamps = [(str(path.absolute()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(json.dumps([what, stamps], sort_keys=True).encode()).hexdigest()[:12]


def kept(name: str, places: list[Path], make: Callable[[Path], None], note: Note) -> Path:
    """The folder `name` in the first of some places that has it or has room for it; `make` writes its files.

    One process of a node makes it, the others wait. A killed one leaves nothing incomplete under that name.

    Raises:
        OSError: None of the places has room.
    """
    for place in places:
        if (place / name).is_dir():
            return place / name
    problem: OSError = OSError("there is no place")
    for place in places:
        try:
            place.mkdir(parents=True, exist_ok=True)
            with alone_on_node(place / f"{name}.lock", note):
                if not (place / name).is_dir():
                    _make(place, name, make)
            return place / name
        except OSError as error:
            log.info("%s cannot be kept in %s: %s", name, place, error)
            problem = error
    raise problem


def _make(place: Path, name: str, make: Callable[[Path], None]) -> None:
    part = Path(tempfile.mkdtemp(prefix=f"{name}.part-", dir=place))
    try:
        make(part)
        os.rename(part, place / name)
    except OSError:
        if not (place / name).is_dir():  # else another node was faster
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def on_disk(root: Path) -> list[Path]:
    """Where files may be kept that are made of the data at `root`: beside them, or in the system's temporary folder."""
    return [root.absolute().parent / HIDDEN, Path(tempfile.gettempdir()) / f"millrace-{os.getuid()}"]


def check_room(folder: Path, num_bytes: int) -> None:
    """Raises OSError where so many bytes would fill the disk."""
    if shutil.disk_usage(folder).free < num_bytes * 1.02:
        raise OSError(f"{folder} has no room for {num_bytes:,} bytes")
