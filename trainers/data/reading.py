"""Which example each loader process is reading, and since when, where its parent sees it."""

import time
from dataclasses import dataclass

import torch
from torch.utils.data import get_worker_info


@dataclass(frozen=True)
class Reading:
    """An example that is being read."""

    example: int
    seconds: float
    """For how long."""


class ReadingBoard:
    """One row a loader process, in memory that it shares with its parent; the parent's own row where there are none."""

    def __init__(self, processes: int) -> None:
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


def _own_row() -> int:
    info = get_worker_info()
    return 0 if info is None else int(info.id)
