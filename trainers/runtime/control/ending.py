"""How a run ends: decided from what happened, without touching anything."""

import re
import traceback
from dataclasses import dataclass

import ray

from trainers.disk import is_full
from trainers.errors import DiskFull, GoesBack, MillraceError, UserCodeFailed
from trainers.events import RETRYING, State, StopReason
from trainers.runtime.gone import GONE

RETURNS = 2
"""How often a run that has lost a shard with all that it had, or its data, goes on from its last checkpoint without
having written another one since."""
HOPELESS = ("SpecRejected", "DataNotFound", "Diverged", "DataChanged")
"""Reasons for which a second try fails as well."""
LEARNED_NOTHING = "LearnedNothing"
"""The reason of a run that has trained everything, and whose loss stayed at chance or above its start."""
STOPPED_EARLY = "StoppedEarly"
"""The reason of a run that ended because it got no better."""
LONGEST_FRAMES = 4000
"""Characters of a traceback that go into the log: its end."""
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""With which Ray writes the process into a traceback; a log is read in browsers and files as well."""


@dataclass(frozen=True)
class RunEnd:
    """The last state of a run under this coordinator."""

    state: State
    """RECOVERING if another coordinator goes on, QUEUED if the run is started once more."""
    reason: str
    message: str


@dataclass(frozen=True)
class Circumstances:
    """What counts beside the error when a run fails."""

    stops_as: State | None = None
    """The state in which the run was about to end, if it had been told to stop."""
    is_trial: bool = False
    went_back: int = 0
    """How often the run went back to its last checkpoint without having written another one since."""


def stopped(stops_as: State, when: str, why: StopReason | None = None) -> RunEnd:
    """The end of a run that was told to stop. why: It was to be cancelled, if who told it has said so."""
    how = f"{stops_as.lower()} {when}"
    if why is None or stops_as is not State.CANCELLED:
        return RunEnd(stops_as, stops_as.capitalize(), how)
    return RunEnd(stops_as, why.reason, f"{why.message} ({how})")


def succeeded(epochs: float, why: str | None, is_complete: bool = True) -> RunEnd:
    """The end of a run that has trained everything, or has got no better. why: It stopped early, or what is wrong with
    it though it did not."""
    if not is_complete:
        return RunEnd(State.SUCCEEDED, STOPPED_EARLY, f"stopped early after {epochs:g} epochs: {why}")
    if why is not None:
        return RunEnd(State.SUCCEEDED, LEARNED_NOTHING, f"trained {epochs:g} epochs; but {why}")
    return RunEnd(State.SUCCEEDED, "Succeeded", f"trained {epochs:g} epochs")


def cause_of(error: BaseException) -> BaseException:
    """What an actor raised, rather than what Ray made of it."""
    cause: BaseException = getattr(error, "cause", None) or error
    return cause


def after_failure(error: Exception, given: Circumstances) -> RunEnd:
    """The end of a run in which something has failed."""
    cause = cause_of(error)
    if isinstance(cause, GoesBack) and given.stops_as is not None:
        return stopped(given.stops_as, f"with its last checkpoint: {cause}")
    if isinstance(cause, GoesBack) and not given.is_trial and given.went_back < RETURNS:
        return RunEnd(State.RECOVERING, cause.reason, f"{cause}; goes back to the last checkpoint")
    if isinstance(cause, MillraceError):
        return RunEnd(State.FAILED, cause.reason, str(cause))
    if is_full(cause):
        return RunEnd(State.FAILED, DiskFull.__name__, f"there is no room on a disk ({cause}); make some, and resume")
    if isinstance(error, GONE):
        return RunEnd(State.FAILED, "WorkerDied", f"a worker or shard of the run died: {error}")
    return RunEnd(State.FAILED, "WorkerFailed", f"{type(cause).__name__}: {cause}")


def explanation(error: Exception) -> str | None:
    """What the log says about an error beyond the message of the end; None where that says it all."""
    cause = cause_of(error)
    if isinstance(cause, UserCodeFailed):
        return str(cause)  # with the last frames of the user's own code
    if isinstance(cause, MillraceError):
        return None
    return frames_of(error)


def frames_of(error: BaseException) -> str:
    """An error with the frames in which it was raised: the last of them, for the log."""
    is_remote = isinstance(error, ray.exceptions.RayTaskError)
    told = COLOURS.sub("", str(error)) if is_remote else "".join(traceback.format_exception(cause_of(error)))
    return told[-LONGEST_FRAMES:]


def last_word(end: RunEnd, starts_again: bool, was_told_to_stop: bool) -> RunEnd:
    """The end as the log has it: a failed run may be started once more, unless it would fail again."""
    if end.state is not State.FAILED or not starts_again or end.reason in HOPELESS or was_told_to_stop:
        return end
    return RunEnd(State.QUEUED, RETRYING, f"{end.reason}: {end.message}; starts again from its last checkpoint")
