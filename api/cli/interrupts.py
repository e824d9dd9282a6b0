"""Ctrl-C and SIGTERM for a command that runs a job or a sweep itself."""

import os
import signal
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from service import (
        LocalRun,
        LocalSweep,
    )  # a run needs no sweeps, whose database takes a fifth of a second to import

STOPPING = b"Stopping cleanly, with a checkpoint. Once more ends it at once.\n"


class Interrupts:
    """The first signal cancels the run cleanly. The second one, or one that comes before there is a run, ends it."""

    def __init__(self) -> None:
        self.run: LocalRun | LocalSweep | None = None
        self.before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self.install()
        return self

    def install(self) -> None:
        """Take the signals. Ray takes SIGTERM when it starts, so call this once more after that."""
        for number in (signal.SIGINT, signal.SIGTERM):
            previous = signal.signal(number, self._handle)
            self.before.setdefault(number, previous)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self.run is None or self.run.cancelling:
            raise KeyboardInterrupt
        self.run.cancel()
        os.write(2, STOPPING)  # not `print`: the signal may have interrupted one, which cannot be entered again
