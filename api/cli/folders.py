"""Whether something can be written where the command line is told to write it."""

import os
from pathlib import Path


def cannot_be_made(folder: Path) -> str | None:
    """Why nothing can be written into a folder, which need not be there yet, as a sentence; None if it can."""
    nearest = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path))
    if not nearest.is_dir():
        return f"{nearest} is no folder; name one, or a place where one can be made"
    if not os.access(nearest, os.W_OK | os.X_OK):
        return f"{nearest} is not yours to write into; name another folder"
    return None
