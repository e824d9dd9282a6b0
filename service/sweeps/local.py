"""A sweep without a server: begins or continues it, follows its log, and returns its results."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from service.errors import SpecInvalid, StateConflict
from service.ids import new_job_id
from service.jobs.queueing.growth import Growth
from service.sweeps import control
from service.sweeps.spec import SweepSpec
from service.sweeps.trial_store import TrialStore
from service.sweeps.turns import Turns
from service.sweeps.views import SweepView, view
from trainers import Event, EventLogReader, FieldError, State, embedded, ensure_own_ray

POLL_S = 0.1
KEEP_EVERY_S = 1.0


def new_sweep_id() -> str:
    """Like a job's id, with a prefix that tells it from one."""
    return f"sweep-{new_job_id()}"


class LocalSweep:
    """A sweep that this process waits for. `cancel` may be called from a signal handler."""

    def __init__(self, store: TrialStore, growth: Growth | None = None) -> None:
        """growth: What the cluster may become; none: it stays as it is."""
        self.store = store
        self.growth = growth
        self.reader = EventLogReader(store.folder)
        self.cancelling = False

    @classmethod
    def open(cls, spec: SweepSpec, folder: Path, growth: Growth | None = None) -> "LocalSweep":
        """Begin a sweep in the folder, or continue the one that is there, extended by what is new in the spec.

        Raises:
            SpecInvalid: The spec is wrong, or the folder holds a sweep of another job.
        """
        store = TrialStore(folder)
        if not store.exists:
            return cls(control.begin(folder, new_sweep_id(), spec), growth)
        Turns(store).require(False)  # of a service, which is not asked here
        known = store.spec
        if known.model_copy(update={"axes": spec.axes, "limits": spec.limits}) != spec:
            message = f"{folder} holds a sweep that differs in more than its axes and limits; name another folder"
            raise SpecInvalid([FieldError(pointer="/job", message=message)])
        sweep = cls(store, growth)
        for _ in sweep.reader.read():  # old events are not reported again
            pass
        control.extend(store, spec.axes, spec.limits.model_dump())
        if store.state in (State.PAUSED, State.FAILED):
            control.resume(store)
        return sweep

    def cancel(self) -> None:
        """Ask for a clean end. This only sets a flag, which the waiting loop reads."""
        self.cancelling = True

    def run(self, on_event: Callable[[Event], None]) -> SweepView:
        """Keep the sweep going, and wait for its end. An exception while waiting pauses the sweep."""
        kept_s, asked = 0.0, False
        try:
            while not self.store.state.is_terminal:
                if self.cancelling and not asked:
                    asked = True
                    with contextlib.suppress(StateConflict):  # it has just ended on its own
                        control.cancel(self.store)
                if time.monotonic() - kept_s > KEEP_EVERY_S:
                    kept_s = time.monotonic()
                    ensure_own_ray()
                    control.keep(self.store, self.growth)
                self._read(on_event)
                time.sleep(POLL_S)
            deadline = time.monotonic() + 10
            while not self._read(on_event) and time.monotonic() < deadline:  # the driver writes the end after the store
                time.sleep(POLL_S)
        except BaseException:
            if not self.store.state.is_terminal:
                control.pause(self.store)
            raise
        return view(self.store)

    def _read(self, on_event: Callable[[Event], None]) -> bool:
        ended = False
        for event in self.reader.read():
            on_event(event)
            ended = event.is_terminal
        return ended


def sweep(
    spec: SweepSpec, folder: Path | str | None = None, on_event: Callable[[Event], None] | None = None
) -> SweepView:
    """Run a sweep to its end. Called again with the same folder, it runs only what is not done yet.

    It uses the Ray that this process is connected to, or starts one on this machine for the sweep.

    Raises:
        SpecInvalid: With a pointer for each field that is wrong.
        NeverFits: The cluster could never start a trial.
    """
    import ray

    from trainers import total_resources

    spec = spec.resolved(Path.cwd())
    with contextlib.nullcontext() if ray.is_initialized() else embedded():
        control.check_fits(spec, total_resources(), Growth())
        found = LocalSweep.open(spec, Path(folder or Path("sweeps") / new_sweep_id()))
        return found.run(on_event or (lambda _: None))
