"""A sweep whose trials all fail for the same reason, which no value of its axes changes: data that are not there, code
that raises.
"""

from collections.abc import Sequence

from service.status import Status
from service.sweeps.trial_store import TrialRow, TrialState
from trainers import State

PERMANENT = ("DataNotFound", "SpecRejected", "UserCodeFailed")
"""Reasons that are as true for the next trial of the same spec; a process that died is none."""
LEAST = 3
"""Trials that must have failed alike before the others are given up."""


def common_failure(trials: Sequence[TrialRow]) -> TrialRow | None:
    """One of the failed trials, where it can be said that the others will fail as it did; otherwise none.

    All that have ended, three or more, failed before their first evaluation with the same words, which no retry
    changes; and of each axis that has several values at least two were tried, so that none of them is to blame.
    """
    ended = [trial for trial in trials if trial.state.has_ended]
    if len(ended) < LEAST or len({(trial.state, trial.reason, trial.message) for trial in ended}) > 1:
        return None
    first = ended[0]
    if first.state is not TrialState.FAILED or first.reason not in PERMANENT or any(t.fraction for t in ended):
        return None
    several = [axis for axis in first.settings if len(_values(trials, axis)) > 1]
    return first if all(len(_values(ended, axis)) > 1 for axis in several) else None


def _values(trials: Sequence[TrialRow], axis: str) -> set[str]:
    return {str(trial.settings.get(axis)) for trial in trials}


def without_success(trials: Sequence[TrialRow]) -> Status | None:
    """How a sweep ends of which trials failed and none succeeded or was stopped on purpose; none for another one."""
    failed = [trial for trial in trials if trial.state is TrialState.FAILED]
    if not failed or any(trial.state in (TrialState.SUCCEEDED, TrialState.STOPPED) for trial in trials):
        return None
    causes = {(trial.reason, trial.message) for trial in failed}
    reason, message = failed[0].reason, failed[0].message
    if len(causes) == 1:
        return Status(State.FAILED, reason, f"{_all(len(failed))}: {message}")
    return Status(State.FAILED, "NoTrialSucceeded", f"{_all(len(failed))}, the first with {reason}: {message}")


def _all(count: int) -> str:
    return "its trial failed" if count == 1 else f"no trial succeeded, {count} failed"
