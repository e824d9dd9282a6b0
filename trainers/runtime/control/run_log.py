"""The log of a run, as its coordinator writes it, and as the next coordinator reads it."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trainers.elastic.heartbeat import Printed
from trainers.errors import Fenced
from trainers.events import EventType, Result, State, Usage, at_work_s
from trainers.runtime.control.ending import Circumstances, RunEnd, after_failure
from trainers.runtime.event_log import EventLog, EventLogReader, Fence
from trainers.runtime.messages import ActorLocation
from trainers.runtime.ray_metrics import RayMetrics

GOES_BACK = ("ShardLost", "DataLost")
"""The reason of a coordinator's last state if the next one has to go on from the last checkpoint."""
TAKES_OVER = "CoordinatorDied"
"""The reason of a coordinator's first state if it replaces one that died."""
STARTS_ANEW = "GoesBack"
"""The same if it replaces one that had to end, for one of these reasons."""


@dataclass(frozen=True)
class LogSummary:
    """What a log says about the time before its reader."""

    is_over: bool = False
    """Whether the run has ended."""
    stops_as: State | None = None
    """The state in which the run was about to end, if it had been told to stop."""
    epochs: int = 0
    """Epochs that were reported since the run began, or since it last began again."""
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    """In that time."""
    furthest: int = 0
    """The last epoch that was ever reported: before it went back to a checkpoint, too."""
    has_trained: bool = False
    """Whether a step was reported."""
    deaths: int = 0
    """How many coordinators have died, or had to end."""
    skipped: tuple[int, ...] = ()
    """Training examples that were skipped."""
    losses: tuple[tuple[int, float], ...] = ()
    """Of each report of steps: the examples trained by then, and the loss."""
    went_back: int = 0
    """How often the run went back to its last checkpoint without having written another one since."""
    wanted: int | None = None
    """With how many workers it was last told to train, since it was started; None: as the spec says."""
    digests: tuple[str, ...] = ()
    """By which the rows of the Ray Datasets are known again that were executed last."""
    trace: dict[str, Any] | None = None
    """What was last said of a trace that is not over."""
    goes_back: bool = False
    """Whether the coordinator before has ended because the run has to go back to a checkpoint."""
    lost: frozenset[str] = frozenset()
    """Names of the actors of whose loss it tells."""

    @property
    def succession(self) -> tuple[str, str]:
        """Reason and message with which the next coordinator begins."""
        if self.goes_back:
            return STARTS_ANEW, "starting everything anew, from the last checkpoint"
        return TAKES_OVER, "going on with the actors that survived"


def summarise_log(run_dir: Path) -> LogSummary:
    """Read the log."""
    events = list(EventLogReader(run_dir).read())
    states = [State(event.data["state"]) for event in events if event.type == "state"]
    last = states[-1] if states else State.STARTING
    reason = next((event.data["reason"] for event in reversed(events) if event.type == "state"), "")
    stops = {State.CANCELLING: State.CANCELLED, State.PAUSING: State.PAUSED}
    begin = max((i for i, event in enumerate(events) if event.type == "actors"), default=0)
    epochs = max((e.data["epoch"] for e in events[begin:] if e.type == "epoch"), default=0)
    evaluations = [event.data for event in events[begin:] if event.type == "evaluation"]
    furthest = max((event.data["epoch"] for event in events if event.type == "epoch"), default=0)
    has_trained = any(event.type == "step" for event in events)
    deaths = sum(event.type == "state" and event.data["reason"] in (TAKES_OVER, STARTS_ANEW) for event in events)
    skipped = tuple(e.data["example"] for e in events if e.type == "log" and "example" in e.data)
    went_back = 0
    for event in events:
        went_back += event.type == "state" and event.data["reason"] in GOES_BACK
        went_back *= event.type != "checkpoint"
    is_over = last.is_terminal or last in (State.PAUSED, State.QUEUED)
    begun = max((i for i, e in enumerate(events) if e.type == "state" and e.data["state"] == State.STARTING), default=0)
    wanted = [event.data["wanted"] for event in events[begun:] if "wanted" in event.data]
    executed: list[str] = next((e.data["digests"] for e in reversed(events) if "digests" in e.data), [])
    last_trace = next((event.data for event in reversed(events) if event.type == "trace"), None)
    is_traced = last_trace is None or "file" in last_trace or "why" in last_trace
    return LogSummary(
        is_over, stops.get(last), epochs, evaluations, furthest, has_trained, deaths, skipped,
        tuple((e.data["examples"], e.data["loss"]) for e in events if e.type == "step"), went_back,
        wanted[-1] if wanted else None, tuple(executed), None if is_traced else last_trace, reason in GOES_BACK,
        frozenset(e.data["actor"] for e in events if e.type == "fault"),
    )  # fmt: skip


class RunLog:
    """Writes a run's events while no other coordinator has taken over, and feeds Ray's metrics with them."""

    def __init__(self, run_dir: Path, metrics: RayMetrics) -> None:
        self.run_dir = run_dir
        self.metrics = metrics
        self.fence: Fence  # from `open` on
        self.events: EventLog  # from `open` on

    def summary(self) -> LogSummary:
        """What it says so far."""
        return summarise_log(self.run_dir)

    def evaluations_until(self, examples: int) -> list[dict[str, Any]]:
        """Those of the training before the version after so many examples; none where it begins."""
        events = EventLogReader(self.run_dir).read() if examples else ()
        return [e.data for e in events if e.type == "evaluation" and e.data["examples"] <= examples]

    def at_work_s(self) -> float:
        """Seconds in which the run was at work until now."""
        return at_work_s(EventLogReader(self.run_dir).read(), time.time())

    def open(self) -> None:
        """Become its only writer."""
        self.fence = Fence.take(self.run_dir)
        self.events = EventLog(self.run_dir)
        self.metrics.begin()

    def write(self, event_type: EventType, data: dict[str, Any], is_last: bool = False) -> int:
        """Append an event; returns its number. is_last: Of the run, or of this coordinator's; room is kept for it.

        Raises:
            Fenced: Another coordinator has taken over.
        """
        self.fence.check()
        event = (self.events.append_last if is_last else self.events.append)(event_type, data)
        self.metrics.add(event_type, data)
        return event.seq

    def state(self, state: State, reason: str, message: str, is_last: bool = False) -> None:
        """The run is in another state."""
        self.write("state", {"state": state.value, "reason": reason, "message": message}, is_last)

    def end(self, end: RunEnd, result: Result | None) -> RunEnd:
        """What came of the run, if it ends as that says, and its last state. Returns the end as it is then."""
        try:
            if result is not None and end.state is result.state:
                self.write("result", result.model_dump(mode="json"))
        except OSError as error:
            end = after_failure(error, Circumstances())
        self.state(end.state, end.reason, end.message, is_last=True)
        return end

    def line(self, level: str, message: str) -> None:
        """Something that a person should read. level: `info`, `warning` or `error`."""
        self.write("log", {"level": level, "message": message})

    def printed(self, printed: Printed) -> None:
        """What an actor's code has printed, a line an event. No run ends for want of it."""
        said = [
            {"level": "info", "message": line, "actor": printed.actor, "stream": stream, "at": when}
            for when, stream, line in printed.lines
        ]
        if printed.left_out:
            more = f"{printed.left_out:,} more lines were printed, faster than they are kept; they are left out"
            said.append({"level": "warning", "message": more, "actor": printed.actor})
        with suppress(OSError, Fenced):
            for data in said:
                self.write("log", data)

    def usage(self, usage: Usage) -> None:
        """What the actors use of their machines. No run ends for want of it."""
        with suppress(OSError, Fenced):
            self.write("usage", usage.model_dump(mode="json", exclude_defaults=True))

    def warning(self, message: str, examples: int, epoch: float) -> None:
        """The run trains on, and its loss says that it should not be left to itself."""
        self.write("warning", {"message": message, "examples": examples, "epoch": epoch})

    def wanted(self, workers: int) -> None:
        """The run was told to train with so many workers from soon on."""
        message = f"is to train with {workers} worker{'' if workers == 1 else 's'}"
        self.write("log", {"level": "info", "message": message, "wanted": workers})

    def skipped(self, example: int, why: str) -> None:
        """A training example that cannot be read is skipped."""
        self.write("log", {"level": "warning", "message": f"skips: {why}", "example": example})

    def executed(self, sizes: Sequence[str], digests: Sequence[str]) -> None:
        """The Ray Datasets lie in the object store. digests: By which their rows are known again."""
        self.write("log", {"level": "info", "message": f"data: {'; '.join(sizes)}", "digests": list(digests)})

    def refresh_gauges(self) -> None:
        """Set the gauges of Ray's metrics again: Ray forgets those that are not."""
        self.metrics.keep()

    def show_workers(self, places: Sequence[ActorLocation]) -> None:
        """Show workers that an earlier coordinator has logged in the metrics of this one."""
        self.metrics.add("actors", {"workers": [asdict(place) for place in places]})

    def close(self) -> None:
        """Flush to the disk, and close."""
        self.events.close()
