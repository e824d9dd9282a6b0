"""Makes another process slow: stopped and continued by turns, as by a neighbour that takes most of its processor."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PERIOD_S = 0.02
"""Of one stop and one go; well below the time of a step, so that every step is slowed alike."""


@contextmanager
def slowed(pid: int, factor: float) -> Iterator[None]:
    """Let a process run for 1/`factor` of the time; at the end it runs as before."""
    ended = threading.Event()

    def alternate() -> None:
        with suppress(ProcessLookupError):
            while not ended.is_set():
                os.kill(pid, signal.SIGSTOP)
                ended.wait(PERIOD_S * (1 - 1 / factor))
                os.kill(pid, signal.SIGCONT)
                ended.wait(PERIOD_S / factor)

    thread = threading.Thread(target=alternate, name=f"slows {pid}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
