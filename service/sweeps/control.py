"""What anybody may do with a sweep, with or without a server: begin, keep going, cancel, pause, resume, extend.

A sweep is its folder. These functions block; those that touch the cluster import Ray Tune when they are first called.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from service.errors import NeverFits, StateConflict
from service.sweeps.axes import configurations, train_specs
from service.sweeps.ledger import FILE_NAME, Ending, Ledger, TrialState
from service.sweeps.spec import SweepSpec
from trainers import Resources, State, needs

SWEEP_CANCELLED = Ending(state=TrialState.CANCELLED, reason="SweepCancelled", message="its sweep was cancelled")
LOSSES = 5
"""Drivers that may die one after another without a trial ending in between."""
LIVE = (State.QUEUED, State.RUNNING, State.CANCELLING)


def begin(folder: Path, sweep_id: str, spec: SweepSpec, body_hash: str = "", user: str = "local") -> Ledger:
    """A new sweep with its trials, none of them started. Raises SpecInvalid."""
    found = configurations(spec)
    part = Ledger(folder, "ledger.part")  # renamed when it is whole: a kill leaves no sweep without its trials
    part.path.unlink(missing_ok=True)
    part.create(sweep_id, spec, body_hash, user)
    part.add(spec, found)
    part.path.rename(folder / FILE_NAME)
    return Ledger(folder)


def check_fits(spec: SweepSpec, total: Resources) -> int:
    """How many trials the sweep has. Raises SpecInvalid, and NeverFits where the cluster could never start one."""
    found = configurations(spec)
    for train in train_specs(found):
        needed = needs(train)
        if not needed.fits(total):
            raise NeverFits(
                f"a trial needs {needed.cpus:g} CPUs and {needed.gpus:g} GPUs at once, the cluster has {total.cpus:g} "
                f"and {total.gpus:g}; ask for fewer workers or for less a worker"
            )
    return len(found)


def keep(ledger: Ledger, trainable: Any = None) -> None:
    """See to it that a sweep with something left to do has a driver. trainable: if a trial is not a run."""
    from service.sweeps.driver import is_alive, start_driver
    from service.sweeps.log import tell_state

    sweep_id = ledger.get("id")
    if ledger.state not in LIVE or is_alive(sweep_id):
        return
    if ledger.driver_starts() <= LOSSES:
        start_driver(sweep_id, ledger.folder, trainable)
        return
    lost = (State.FAILED, "DriverLost", f"its driver died {LOSSES} times in a row; resume it to try again")
    if ledger.close_books(*lost, with_queued=True):
        tell_state(ledger.folder, *lost)


def cancel(ledger: Ledger) -> None:
    """End it: what runs stops cleanly, what waits is not run. Raises StateConflict where it has ended."""
    from service.sweeps.log import tell_state

    told = ("CancelRequested", "stops its trials")
    if ledger.move((State.PAUSED,), State.CANCELLED, *told):
        for row in ledger.trials():
            ledger.ask(row.id, SWEEP_CANCELLED)
        tell_state(ledger.folder, State.CANCELLED, "Cancelled", "cancelled while it was paused")
    elif not ledger.move((State.QUEUED, State.RUNNING), State.CANCELLING, *told) and ledger.state.is_terminal:
        raise StateConflict(f"the sweep is {ledger.state}; only one that has not ended can be cancelled")


def pause(ledger: Ledger) -> None:
    """Take its processes away. Its trials go on later from their last checkpoints. Raises StateConflict."""
    from service.sweeps.driver import kill_driver, recover, wait_until_gone
    from service.sweeps.log import tell_state

    if not ledger.move((State.QUEUED, State.RUNNING), State.PAUSED, "PauseRequested", "holds nothing of the cluster"):
        raise StateConflict(f"the sweep is {ledger.state}; only one that runs can be paused")
    kill_driver(ledger.get("id"))
    wait_until_gone(ledger.get("id"))
    recover(ledger)
    tell_state(ledger.folder, State.PAUSED, "PauseRequested", "holds nothing of the cluster")


def resume(ledger: Ledger) -> None:
    """Go on with one that is paused, or that failed with trials left. Raises StateConflict."""
    if not ledger.move((State.PAUSED, State.FAILED), State.QUEUED, "ResumeRequested", "waits for its driver"):
        raise StateConflict(f"the sweep is {ledger.state}; only one that is paused or has failed can be resumed")


def extend(ledger: Ledger, axes: Mapping[str, Any], limits: Mapping[str, Any] | None = None) -> list[str]:
    """More values on its axes, or more axes, or other limits; while it runs or afterwards. Returns the new trials' ids.

    Raises:
        SpecInvalid: What is added is wrong; nothing has changed.
        StateConflict: It is being cancelled.
    """
    if ledger.state is State.CANCELLING:
        raise StateConflict("the sweep is being cancelled; extend it when it has ended")
    spec = ledger.spec.extended(axes, limits)
    return ledger.add(spec, configurations(spec))


def stop_trial(ledger: Ledger, trial: str) -> None:
    """End one trial, cleanly where it runs. Raises StateConflict where it has ended."""
    told = Ending(state=TrialState.CANCELLED, reason="CancelRequested", message="this trial was cancelled")
    if not ledger.ask(trial, told):
        raise StateConflict(f"trial {trial} has ended")
