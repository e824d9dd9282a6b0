"""Begins the service anew where the Ray that it has started has ended.

Ray's client does not come away from a Ray that is gone: calls hang, and after a minute it ends the process. The service
is written to be killed at any moment, so it does that itself, at once, and is the same process all along.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

LOOK_S = 2.0
"""Between two looks whether there is a Ray."""


class HeadWatch(threading.Thread):
    """Looks after the Ray of a service from a thread of its own."""

    def __init__(self, state_dir: Path, port: int, is_stopping: Callable[[], bool]) -> None:
        """
        Args:
            port: At which the service is reached, and will be again.
            is_stopping: Whether the service was asked to stop; Ray may have been, too, by who stops everything.
        """
        super().__init__(name="head watch", daemon=True)
        self.state_dir = state_dir
        self.port = port
        self.is_stopping = is_stopping

    def run(self) -> None:
        """As long as there is one."""
        from service import head_is_alive

        while head_is_alive(self.state_dir):
            time.sleep(LOOK_S)
        if not self.is_stopping():
            begin_anew(self.port)


def begin_anew(port: int) -> NoReturn:
    """Run this command once more in place of this process, whose children end."""
    from service import end_children

    print("Ray has ended beneath the service, which begins anew with another one.", file=sys.stderr, flush=True)
    end_children()
    os.execv(sys.executable, [*sys.orig_argv, "--port", str(port)])
