"""An iterator that waits for the network, for a main thread that should hear of Ctrl-C at once.

A signal that arrives just before a blocking read is only noticed when that read returns, which may be as late as the
next ping of an idle stream.
"""

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")

LOOK_S = 0.2
"""Between two looks for a signal."""


def interruptible(items: Iterator[T]) -> Iterator[T]:
    """The same items, read by a thread of its own; raises what that raises. What nobody waits for any more is left to
    the end of the process."""
    found: queue.Queue[tuple[T] | BaseException | None] = queue.Queue()

    def read() -> None:
        try:
            for item in items:
                found.put((item,))
            found.put(None)
        except BaseException as error:  # whoever waits shall know
            found.put(error)

    threading.Thread(target=read, name="reader", daemon=True).start()
    while True:
        try:
            next_one = found.get(timeout=LOOK_S)
        except queue.Empty:
            continue
        if next_one is None:
            return
        if isinstance(next_one, BaseException):
            raise next_one
        yield next_one[0]
