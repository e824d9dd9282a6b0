"""Opens a plain file, and nothing else: names come from outside, and a run may have left links and pipes."""

import os
import stat
from pathlib import Path
from typing import BinaryIO


class NotPlain(OSError):
    """There is something of that name, but no plain file."""


def open_plain(path: str | Path, folder: int | None = None) -> BinaryIO:
    """Open a file for reading. Raises OSError, also for a link, and NotPlain.

    folder: a descriptor of the folder that the file is in.
    """
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise NotPlain(f"{path} is no plain file")
    return os.fdopen(file, "rb")
