"""One process of a node at a time."""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Note = Callable[[str], None]
"""Is told what takes long, in a few words."""


@contextmanager
def alone_on_node(path: Path, note: Note) -> Iterator[None]:
    """Held by one process of the node at a time; the others say that they wait."""
    with open(path, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel releases it when its holder dies
        except BlockingIOError:
            note("waits for another process to read the dataset")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
