"""Which examples are being read, and since when: by the loader processes, where their parent sees it, and by a process
that opens a dataset."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Reading:
    """An example that is being read."""

    example: int
    seconds: float
    """For how long."""


class ReadingBoard:
    """One row a loader process, in memory that it shares with its parent; the parent's own row where there are none."""

    def __init__(self, processes: int) -> None:
        import torch  # an actor that asks what is read need not have it

        # Example, and the nanosecond on the system's monotonic clock at which its reading began; 0: none.
        self._rows = torch.zeros(max(1, processes), 2, dtype=torch.int64)
        self._rows.share_memory_()  # type: ignore[no-untyped-call]

    def begin(self, example: int) -> None:
        """The calling process begins to read an example."""
        row = self._rows[_own_row()]
        row[0] = example
        row[1] = time.monotonic_ns()

    def end(self) -> None:
        """It has read it, or failed."""
        self._rows[_own_row(), 1] = 0

    def longest(self) -> Reading | None:
        """The example that has been read for longest; None while none is being read."""
        begun = [(since_ns, example) for example, since_ns in self._rows.tolist() if since_ns]
        if not begun:
            return None
        since_ns, example = min(begun)
        return Reading(example, (time.monotonic_ns() - since_ns) / 1e9)


class OpeningBoard:
    """What the threads of this process read one by one while a dataset is being opened, before there is one to ask."""

    def __init__(self) -> None:
        self._begun: dict[int, tuple[float, int]] = {}  # by thread: since when, and which

    @contextmanager
    def reads(self, example: int) -> Iterator[None]:
        """The calling thread reads an example meanwhile."""
        own = threading.get_ident()
        self._begun[own] = time.monotonic(), example
        try:
            yield
        finally:
            del self._begun[own]

    def longest(self) -> Reading | None:
        """The example that has been read for longest; None while none is being read."""
        begun = list(self._begun.values())
        if not begun:
            return None
        since_s, example = min(begun)
        return Reading(example, time.monotonic() - since_s)


OPENING = OpeningBoard()
"""Of this process."""


def _own_row() -> int:
    from torch.utils.data import get_worker_info

    info = get_worker_info()
    return 0 if info is None else int(info.id)
