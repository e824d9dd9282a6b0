"""Writing where there may be no room."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from trainers.errors import DiskFull

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What fails inside because the disk of `path` is full, or the user's quota of it used up, raises DiskFull."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if not is_full(error):
            raise
        raise DiskFull(f"there is no room for {path}") from error


def is_full(error: BaseException) -> bool:
    """Whether a write failed for want of room."""
    if isinstance(error, OSError):
        return error.errno in NO_ROOM
    return isinstance(error, SafetensorError) and any(f"os error {number})" in str(error) for number in NO_ROOM)
