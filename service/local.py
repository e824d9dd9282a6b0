"""One run without a server: start it on the connected Ray, follow its log, hand back its result."""

import time
from collections.abc import Callable
from pathlib import Path

from service.progress import Progress
from service.runs import RunHandle, Runs
from service.spec import JobSpec
from service.tensorboard import EventFile
from trainers import Event, Journal, JournalReader, MillraceError, Result

POLL_S = 0.1
ALIVE_EVERY_S = 1.0
DEAD_TIMES = 2  # answers in a row before the coordinator counts as dead


class LocalRun:
    """A run that this process waits for. `cancel` asks it to stop cleanly and may be called from a signal handler."""

    def __init__(self, runs: Runs, job_id: str, spec: JobSpec, run_dir: Path) -> None:
        self.runs = runs
        self.job_id = job_id
        self.spec = spec
        self.run_dir = run_dir
        self.progress = Progress()
        self.reader = JournalReader(run_dir)
        self.board = EventFile(run_dir)
        self.cancelling = False

    def cancel(self) -> None:
        """Ask for a clean stop with a checkpoint; only leaves word, the waiting loop passes it on."""
        self.cancelling = True

    def run(self, on_event: Callable[[Event], None]) -> Result:
        """Start, and wait for the end. Whatever interrupts the waiting takes the run down with it."""
        try:
            handle = self.runs.start_run(self.job_id, self.spec.train, self.run_dir)
            self._wait(handle, on_event)
        except BaseException as error:
            told = str(error) or f"ended by {type(error).__name__}"
            self._end(on_event, error.reason if isinstance(error, MillraceError) else "Interrupted", told)
            raise
        return self.result

    @property
    def result(self) -> Result:
        """How it ended, or how far it has come."""
        return self.progress.result_so_far(self.job_id, self.spec.model_dump(mode="json"))

    def _wait(self, handle: RunHandle, on_event: Callable[[Event], None]) -> None:
        asked, dead = False, 0
        checked_s = time.monotonic()
        while not self._read(on_event):
            if self.cancelling and not asked:
                asked = True
                handle.cancel()
            if time.monotonic() - checked_s >= ALIVE_EVERY_S:
                checked_s, asked = time.monotonic(), False  # a coordinator that has died took along what it was asked
                dead = 0 if handle.is_alive() else dead + 1
                if dead >= DEAD_TIMES and not self._read(on_event):
                    told = "the run's coordinator died; what checkpoints it wrote are in the run directory"
                    self._end(on_event, "CoordinatorLost", told)
                    return
            time.sleep(POLL_S)

    def _read(self, on_event: Callable[[Event], None]) -> bool:
        for event in self.reader.read():
            self.board.add([event])
            self.progress.add(event)
            on_event(event)
        return self.progress.state.is_terminal

    def _end(self, on_event: Callable[[Event], None], reason: str, message: str) -> None:
        """Take down what is left, and give the log the end that its coordinator did not write."""
        self.runs.sweep_run(self.job_id)
        if not self._read(on_event):
            self.run_dir.mkdir(parents=True, exist_ok=True)
            journal = Journal(self.run_dir)
            journal.append("state", {"state": "FAILED", "reason": reason, "message": message})
            journal.close()
            self._read(on_event)
