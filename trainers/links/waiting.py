"""Whether a thread waits for another process, as other threads see it: a worker that waits does not hang, its peer may.

Every thread has a flag of its own. Whatever blocks until a peer has done something raises it: `Handle.wait` above all,
and the calls on connections that block by themselves.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from trainers.spans import span


class WaitFlag:
    """Raised by its thread with `with`, which may be nested; read by any thread."""

    def __init__(self) -> None:
        self._depth = 0

    @property
    def is_raised(self) -> bool:
        """Whether the thread waits."""
        return self._depth > 0

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *error: object) -> None:
        self._depth -= 1


class CountsWaits(Protocol):
    """Whoever counts the seconds that its callers stood still."""

    waited_s: float


@contextmanager
def waiting(owner: CountsWaits) -> Iterator[None]:
    """The thread stands still for another process: counted in `owner.waited_s`, and a part of the step in a trace."""
    began = time.perf_counter()
    try:
        with span("waiting"):
            yield
    finally:
        owner.waited_s += time.perf_counter() - began


class _ThreadLocal(threading.local):
    def __init__(self) -> None:
        self.flag = WaitFlag()


_LOCAL = _ThreadLocal()


def wait_flag() -> WaitFlag:
    """The flag of the calling thread."""
    return _LOCAL.flag
