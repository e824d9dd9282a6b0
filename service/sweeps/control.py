"""The operations on a sweep, with or without a server: begin, keep going, cancel, pause, resume, extend.

A sweep is its folder. These functions block. Those that need the cluster import Ray Tune when they are first called.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from service.database.job_changes import JobChanges, merged_labels
from service.errors import NeverFits, StateConflict
from service.jobs.queueing.growth import REMEDY, Growth
from service.status import Status
from service.sweeps.axes import configurations, train_specs
from service.sweeps.spec import SweepSpec
from service.sweeps.trial_store import FILE_NAME, SWEEP_CANCELLED, Ending, TrialState, TrialStore
from service.sweeps.turns import Turns
from trainers import Resources, State, needs

LOSSES = 5
"""How many drivers may die one after another without a trial ending in between."""
LIVE = (State.QUEUED, State.RUNNING, State.CANCELLING)


def begin(folder: Path, sweep_id: str, spec: SweepSpec, body_hash: str = "", user: str = "local") -> TrialStore:
    """Create a sweep with its trials, none of them started. Raises SpecInvalid."""
    found = configurations(spec)
    part = TrialStore(
        folder, "ledger.part"
    )  # renamed when it is complete, so that a kill leaves no sweep without its trials
    part.path.unlink(missing_ok=True)
    part.create(sweep_id, spec, body_hash, user)
    part.add(spec, found)
    part.path.rename(folder / FILE_NAME)
    return TrialStore(folder)


def check_fits(
    spec: SweepSpec, total: Resources, growth: Growth, refuses: Callable[[Resources], str | None] = lambda _: None
) -> int:
    """The number of trials of the sweep, or the most there may be. Raises SpecInvalid, and NeverFits if the cluster
    could never start one.

    total: What the cluster has. growth: What it may become. refuses: Why who submits it may never hold so much.
    """
    found = configurations(spec)
    for train in train_specs(found):
        if (why := growth.refuses(train, total, "a trial")) is not None:
            raise NeverFits(why)
        if (limit := refuses(needed := needs(train))) is not None:
            lacks = f"a trial needs {needed.cpus:g} CPUs and {needed.gpus:g} GPUs at once, and {limit}"
            raise NeverFits(f"{lacks}; {REMEDY}")
    return spec.most_trials or len(found)


def keep(store: TrialStore, growth: Growth | None = None, trainable: Any = None) -> None:
    """Make sure that a sweep with something left to do has a driver.

    growth: What the cluster may become; none: it stays as it is. trainable: Replaces the class of the trials.
    """
    from service.sweeps.driver import is_alive, start_driver
    from service.sweeps.log import write_status

    sweep_id = store.get("id")
    if store.state not in LIVE or not Turns(store).leave_work or is_alive(sweep_id):
        return
    if store.driver_starts() <= LOSSES:
        start_driver(sweep_id, store.folder, growth or Growth(), trainable)
        return
    lost = Status(State.FAILED, "DriverLost", f"its driver died {LOSSES} times in a row; resume it to try again")
    if store.close(lost, with_queued=True):
        write_status(store.folder, lost)


def cancel(store: TrialStore) -> None:
    """Cancel it: running trials stop cleanly, queued ones are not run. Raises StateConflict if it has ended."""
    from service.sweeps.log import write_status

    reason, message = "CancelRequested", "stops its trials"
    if store.move((State.PAUSED,), Status(State.CANCELLED, reason, message)):
        for row in store.trials():
            store.ask(row.id, SWEEP_CANCELLED)
        write_status(store.folder, Status(State.CANCELLED, "Cancelled", "cancelled while it was paused"))
        return
    is_moved = store.move((State.QUEUED, State.RUNNING), Status(State.CANCELLING, reason, message))
    if not is_moved and store.state.is_terminal:
        raise StateConflict(f"the sweep is {store.state}; only one that has not ended can be cancelled")


def pause(store: TrialStore) -> None:
    """Stop its processes. Its trials go on later from their last checkpoints. Raises StateConflict."""
    from service.sweeps.driver import kill_driver, recover, wait_for_exit
    from service.sweeps.log import write_status

    paused = Status(State.PAUSED, "PauseRequested", "holds nothing of the cluster")
    if not store.move((State.QUEUED, State.RUNNING), paused):
        raise StateConflict(f"the sweep is {store.state}; only one that runs can be paused")
    kill_driver(store.get("id"))
    wait_for_exit(store.get("id"))
    recover(store)
    Turns(store).withdraw()
    write_status(store.folder, paused)


def resume(store: TrialStore) -> None:
    """Resume one that is paused, or that failed with trials left. Raises StateConflict."""
    queued = Status(State.QUEUED, "ResumeRequested", "waits for its driver")
    if not store.move((State.PAUSED, State.FAILED), queued):
        raise StateConflict(f"the sweep is {store.state}; only one that is paused or has failed can be resumed")


def extend(store: TrialStore, axes: Mapping[str, Any], limits: Mapping[str, Any] | None = None) -> list[str]:
    """Add values to its axes, add axes, or change its limits, while it runs or afterwards. Returns the new trials' ids.

    Raises:
        SpecInvalid: The addition is wrong; nothing has changed.
        StateConflict: It is being cancelled.
    """
    if store.state is State.CANCELLING:
        raise StateConflict("the sweep is being cancelled; extend it when it has ended")
    spec = store.spec.extended(axes, limits)
    return store.add(spec, configurations(spec))


def edit(store: TrialStore, changes: JobChanges) -> None:
    """Change name, labels, notes or priority, or archive it. Raises StateConflict, SpecInvalid."""
    given, state = changes.given, store.state
    priority = given.pop("priority", None)
    if priority is not None and state.is_terminal:
        raise StateConflict(
            f"the sweep is {state}; only the trials of one that has not ended have a place in the queue"
        )
    if changes.archived and not state.is_terminal:
        raise StateConflict(f"the sweep is {state}; only one that has ended can be archived")
    spec = store.get("spec")
    job = spec["job"] | ({} if priority is None else {"priority": priority})
    if changes.labels:
        job["labels"] = merged_labels(job["labels"], changes.labels)
        given.pop("labels")
    store.change(priority, spec=spec | {"name": given.pop("name", spec["name"]), "job": job}, **given)


def stop_trial(store: TrialStore, trial: str) -> None:
    """Cancel one trial, with a clean stop if it runs. Raises StateConflict if it has ended."""
    ending = Ending(state=TrialState.CANCELLED, reason="CancelRequested", message="this trial was cancelled")
    if not store.ask(trial, ending):
        raise StateConflict(f"trial {trial} has ended")
