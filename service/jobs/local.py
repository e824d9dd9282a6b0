"""One run without a server: starts it on the connected Ray, follows its log, and returns its result."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from service.errors import StorageFull
from service.jobs.progress import LOST, Progress
from service.jobs.runs import RunHandle, Runs
from service.spec import JobSpec
from service.status import Status, append_status
from service.tracking.tensorboard import EventFile
from trainers import Event, EventLogReader, Fence, MillraceError, Result, State, TraceRefused

POLL_S = 0.1
ALIVE_EVERY_S = 1.0
DEAD_TIMES = 2  # negative answers in a row after which the coordinator counts as dead


class LocalRun:
    """A run that this process waits for. `cancel` asks it to stop cleanly and may be called from a signal handler."""

    def __init__(self, runs: Runs, job_id: str, spec: JobSpec, run_dir: Path, trace: int = 0) -> None:
        """trace: How many steps of its first worker are recorded, once it trains."""
        self.runs = runs
        self.job_id = job_id
        self.spec = spec
        self.run_dir = run_dir
        self.progress = Progress()
        self.reader = EventLogReader(run_dir)
        self.board = EventFile(run_dir)
        self.cancelling = False
        self.trace = trace

    def cancel(self) -> None:
        """Ask for a clean stop with a checkpoint. This only sets a flag, which the waiting loop reads."""
        self.cancelling = True

    def run(self, on_event: Callable[[Event], None]) -> Result:
        """Start the run and wait for its end. An exception while waiting ends the run too."""
        try:
            handle = self.runs.start_run(self.job_id, self.spec.train, self.run_dir)
            self._wait(handle, on_event)
        except StorageFull:
            raise
        except BaseException as error:
            reason = error.reason if isinstance(error, MillraceError) else "Interrupted"
            self._end(on_event, Status(State.FAILED, reason, str(error) or f"ended by {type(error).__name__}"))
            raise
        return self.result

    @property
    def result(self) -> Result:
        """How it ended, or how far it is."""
        return self.progress.result_so_far(self.job_id, self.spec.model_dump(mode="json"))

    def _wait(self, handle: RunHandle, on_event: Callable[[Event], None]) -> None:
        asked, dead = False, 0
        checked_s = time.monotonic()
        while not self._read(on_event):
            if self.cancelling and not asked:
                asked = True
                handle.cancel()
            if self.trace and self.progress.metrics is not None:
                steps, self.trace = self.trace, 0
                with suppress(TraceRefused):  # it is over already
                    handle.trace(steps, None)
            if time.monotonic() - checked_s >= ALIVE_EVERY_S:
                checked_s, asked = time.monotonic(), False  # a coordinator that has died has lost the request
                dead = 0 if handle.is_alive() else dead + 1
                if dead >= DEAD_TIMES and not self._read(on_event):
                    message = "the run's coordinator died; what checkpoints it wrote are in the run directory"
                    self._end(on_event, Status(State.FAILED, LOST, message))
                    return
            time.sleep(POLL_S)

    def _read(self, on_event: Callable[[Event], None]) -> bool:
        for event in self.reader.read():
            self.board.add([event])
            self.progress.add(event)
            on_event(event)
        return self.progress.state.is_terminal

    def _end(self, on_event: Callable[[Event], None], status: Status) -> None:
        """Remove what is left of the run, and write the last state that its coordinator did not write."""
        self.runs.cleanup_run(self.job_id)
        if not self._read(on_event):
            try:
                self.run_dir.mkdir(parents=True, exist_ok=True)
                Fence.take(self.run_dir)  # a coordinator that has not ended yet writes no more
                append_status(self.run_dir, status)
            except OSError as error:
                problem = f"the end of the run cannot be written into {self.run_dir} ({error.strerror})"
                raise StorageFull(f"{problem}: {status.message}") from error
            self._read(on_event)
