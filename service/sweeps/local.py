"""A sweep without a server: begin it or go on with it, follow its log, hand back what came of it."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from service.errors import SpecInvalid, StateConflict
from service.store import new_job_id
from service.sweeps import control
from service.sweeps.ledger import Ledger
from service.sweeps.spec import SweepSpec
from service.sweeps.view import SweepView, view
from trainers import Event, FieldError, JournalReader, State, embedded

POLL_S = 0.1
KEEP_EVERY_S = 1.0


def new_sweep_id() -> str:
    """Like a job's id, and told from it by its beginning."""
    return f"sweep-{new_job_id()}"


class LocalSweep:
    """A sweep that this process waits for. `cancel` may be called from a signal handler."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.reader = JournalReader(ledger.folder)
        self.cancelling = False

    @classmethod
    def open(cls, spec: SweepSpec, folder: Path) -> "LocalSweep":
        """Begin a sweep in the folder, or go on with the one that is there, extended by what is new in the spec.

        Raises:
            SpecInvalid: The spec is wrong, or the folder holds a sweep of another job.
        """
        ledger = Ledger(folder)
        if not ledger.exists:
            return cls(control.begin(folder, new_sweep_id(), spec))
        known = ledger.spec
        if known.model_copy(update={"axes": spec.axes, "limits": spec.limits}) != spec:
            told = f"{folder} holds a sweep that differs in more than its axes and limits; name another folder"
            raise SpecInvalid([FieldError(pointer="/job", message=told)])
        sweep = cls(ledger)
        for _ in sweep.reader.read():  # what is old is not told again
            pass
        control.extend(ledger, spec.axes, spec.limits.model_dump())
        if ledger.state in (State.PAUSED, State.FAILED):
            control.resume(ledger)
        return sweep

    def cancel(self) -> None:
        """Ask for a clean end; only leaves word, the waiting loop passes it on."""
        self.cancelling = True

    def run(self, on_event: Callable[[Event], None]) -> SweepView:
        """Wait for the end, and see to it that it has a driver. Whatever interrupts the waiting pauses the sweep."""
        kept_s, asked = 0.0, False
        try:
            while not self.ledger.state.is_terminal:
                if self.cancelling and not asked:
                    asked = True
                    with contextlib.suppress(StateConflict):  # it has just ended by itself
                        control.cancel(self.ledger)
                if time.monotonic() - kept_s > KEEP_EVERY_S:
                    kept_s = time.monotonic()
                    control.keep(self.ledger)
                self._read(on_event)
                time.sleep(POLL_S)
            deadline = time.monotonic() + 10
            while not self._read(on_event) and time.monotonic() < deadline:  # the driver's last word
                time.sleep(POLL_S)
        except BaseException:
            if not self.ledger.state.is_terminal:
                control.pause(self.ledger)
            raise
        return view(self.ledger)

    def _read(self, on_event: Callable[[Event], None]) -> bool:
        ended = False
        for event in self.reader.read():
            on_event(event)
            ended = event.is_terminal
        return ended


def sweep(
    spec: SweepSpec, folder: Path | str | None = None, on_event: Callable[[Event], None] | None = None
) -> SweepView:
    """Run a sweep to its end. Called again on the same folder, it runs only what is not done yet.

    Uses the Ray that this process is connected to, or starts one on this machine for the time of the sweep.

    Raises:
        SpecInvalid: With a pointer for each field that is wrong.
        NeverFits: The cluster could never start a trial.
    """
    import ray

    from trainers import total_resources

    spec = spec.resolved(Path.cwd())
    with contextlib.nullcontext() if ray.is_initialized() else embedded():
        control.check_fits(spec, total_resources())
        found = LocalSweep.open(spec, Path(folder or Path("sweeps") / new_sweep_id()))
        return found.run(on_event or (lambda _: None))
