"""Work that ends its process. Beside the tests, because the process would import all that they import, torch too."""

import os
import signal
from pathlib import Path


def die_once(marker: Path) -> int:
    """Returns the process that did not."""
    if not marker.exists():
        marker.touch()
        die()
    return os.getpid()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
