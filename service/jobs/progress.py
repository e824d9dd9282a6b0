"""The progress of a run, folded from its event log. All that is shown or stored of events comes from here."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field

from service.curve import Curve
from service.status import Status
from trainers import (
    RETRYING,
    Event,
    Latency,
    LatencyCounts,
    Metrics,
    Result,
    State,
    Usage,
    adds_to_work,
    headline_of,
    is_judged,
    measured_in,
    metrics_of,
    set_of,
    who_trains,
)

LOST = "CoordinatorLost"
"""The reason of a coordinator that ended without a last state: with its node, or with the whole cluster."""


class Progress(BaseModel):
    """How far a run is. Feed it every event once, in order."""

    state: State = State.QUEUED
    reason: str = ""
    message: str = ""
    seq: int = 0
    """The last event's number."""
    started: float | None = None
    """When the first event came, in seconds since 1970."""
    ended: float | None = None
    """When the last event came."""
    at_work_s: float = 0.0
    """Seconds in which it was at work by then, pauses and waiting not counted."""
    first_step: tuple[float, float] | None = None
    """Time and epochs of the first report."""
    metrics: Metrics | None = None
    metrics_time: float = 0.0
    fetch_latency: LatencyCounts = Field(default_factory=dict)
    """Of all fetches so far, whoever coordinated them."""
    push_latency: LatencyCounts = Field(default_factory=dict)
    usage: Usage | None = None
    """What each actor used of its machine, as it was told last."""
    epoch_loss: float | None = None
    """Mean training loss over the last complete epoch."""
    evaluation: dict[str, Any] | None = None
    curve: Curve = Field(default_factory=Curve)
    """The headline of the evaluations by which the run is judged."""
    workers: list[str] = Field(default_factory=list)
    """Names of the workers, as in Ray's dashboard."""
    shards: list[str] = Field(default_factory=list)
    wanted: int = 0
    """Workers that it was last asked to have since it has started; 0: it was not asked."""
    result: Result | None = None
    retries: int = 0
    """How often it was started again after it had failed."""
    losses: int = 0
    """How often it lost its coordinator since it last wrote a checkpoint."""

    def add(self, event: Event) -> None:
        """Take in one more event."""
        self.seq = event.seq
        if self.ended is not None and adds_to_work(self.state):
            self.at_work_s += max(0.0, event.time - self.ended)
        self.started = event.time if self.started is None else self.started
        self.ended = event.time
        match event.type:
            case "state":
                self._enter(Status.of_event(event))
            case "step":
                self.metrics, self.metrics_time = Metrics.model_validate(event.data), event.time
                self.first_step = self.first_step or (event.time, self.metrics.epoch)
                self._add_latencies(self.metrics)
            case "usage":
                self.usage = Usage.model_validate(event.data)
            case "epoch":
                self.epoch_loss = event.data.get("train_loss")
            case "evaluation":
                self._evaluate(event.data)
            case "actors":
                self.workers = [_name(actor) for actor in event.data.get("workers", [])]
                self.shards = [_name(actor) for actor in event.data.get("shards", [])]
            case "resize":
                left = event.data.get("left", [])
                self.workers = [w for w in (*self.workers, *event.data.get("joined", [])) if w not in left]
                self._tell_who_trains(event.data["workers"])
            case "log" if "wanted" in event.data:
                self.wanted = event.data["wanted"]
                self._tell_who_trains(len(self.workers))
            case "checkpoint":
                self.losses = 0
            case "result":
                self.result = Result.model_validate(event.data)
            case _:
                pass

    @property
    def status(self) -> Status:
        """The last status in the log."""
        return Status(self.state, self.reason, self.message)

    @property
    def headline(self) -> tuple[str, float] | None:
        """The metric by which runs of its task are compared, from the last evaluation; none before the first."""
        evaluation = self.evaluation or {}
        name, _ = headline_of(evaluation) or ("", False)
        value = metrics_of(evaluation).get(name)
        return None if value is None else (name, value)

    def _tell_who_trains(self, workers: int) -> None:
        if self.reason == "Training":
            self.message = who_trains(workers, self.wanted)

    def _enter(self, status: Status) -> None:
        self.state, self.reason, self.message = status.state, status.reason, status.message
        self.retries += status.state is State.QUEUED and status.reason == RETRYING
        self.losses += status.state is State.QUEUED and status.reason == LOST
        if status.state in (State.QUEUED, State.STARTING):  # its pace is measured anew, and it has no result any more
            self.first_step = self.result = None
            self.wanted = 0

    def _evaluate(self, evaluation: dict[str, Any]) -> None:
        self.evaluation = evaluation
        if self.headline is not None and is_judged(evaluation):
            self.curve.add(self.headline[1])

    def _add_latencies(self, metrics: Metrics) -> None:
        for told, so_far in zip(_latencies(metrics), _latencies(self), strict=True):
            for bucket, count in told.items():
                so_far[bucket] = so_far.get(bucket, 0) + count

    def fraction(self, epochs: float) -> float:
        """0 to 1: how much of the training is done."""
        if self.state is State.SUCCEEDED:
            return 1.0
        return min(1.0, self.metrics.epoch / (self.metrics.run_epochs or epochs)) if self.metrics else 0.0

    def eta_s(self, epochs: float, now: float | None = None) -> float | None:
        """Seconds until the last epoch ends, at the mean pace so far; none while that is not known."""
        if self.metrics is None or self.first_step is None or self.state.is_terminal:
            return None
        begin_s, begin_epoch = self.first_step
        done, elapsed_s = self.metrics.epoch - begin_epoch, self.metrics_time - begin_s
        if done <= 0 or elapsed_s <= 0:
            return None
        since_s = (time.time() if now is None else now) - self.metrics_time
        left = (self.metrics.run_epochs or epochs) - self.metrics.epoch
        return max(0.0, left * elapsed_s / done - since_s)

    def result_so_far(self, job_id: str, spec: dict[str, Any]) -> Result:
        """The run's own result, or one with the same fields for a run that has none (yet)."""
        fetch_latency, push_latency = map(Latency.of, _latencies(self))
        if self.result is not None:
            now = {"state": self.state, "message": self.message or self.result.message}
            return self.result.model_copy(update={**now, "fetch_latency": fetch_latency, "push_latency": push_latency})
        metrics, evaluation = self.metrics, self.evaluation or {}
        headline, measured = headline_of(evaluation), {set_of(evaluation): measured_in(evaluation)}
        return Result(
            job_id=job_id,
            state=self.state,
            epochs=metrics.epoch if metrics else 0.0,
            examples=metrics.examples if metrics else 0,
            test_accuracy=evaluation.get("test_accuracy"),
            test_loss=evaluation.get("test_loss"),
            test_error_median=evaluation.get("test_error_median"),
            metrics=measured.get("test", {}),
            validation=measured.get("validation", {}),
            headline=None if headline is None else headline[0],
            higher_is_better=None if headline is None else headline[1],
            train_loss=metrics.loss if metrics and self.epoch_loss is None else self.epoch_loss,
            examples_per_s=self._mean_rate(),
            wall_s=self.at_work_s,
            fetch_latency=fetch_latency,
            push_latency=push_latency,
            algorithm=spec["algorithm"]["name"],
            workers=len(self.workers) or (metrics.workers if metrics else 0),
            dropped=metrics.dropped if metrics else 0,
            model_path=None,
            message=self.message,
        )

    def _mean_rate(self) -> float:
        if self.metrics is None or self.first_step is None:
            return 0.0
        elapsed_s = self.metrics_time - self.first_step[0]
        since_first = 1 - self.first_step[1] / self.metrics.epoch if self.metrics.epoch else 0.0
        return self.metrics.examples * since_first / elapsed_s if elapsed_s > 0 else self.metrics.examples_per_s


@dataclass(frozen=True)
class LogFilter:
    """Of what is said, by whom."""

    worker: int | None = None
    """Only what the code of this worker has printed."""
    grep: str = ""
    """Only lines that contain this, in upper or lower case."""

    def line(self, event: Event) -> str | None:
        """The event as a line, if it is one that is wanted."""
        if self.worker is not None and event.data.get("actor") != f"worker/{self.worker}":
            return None
        line = log_line(event)
        return line if line is not None and self.grep.lower() in line.lower() else None


def log_line(event: Event) -> str | None:
    """An event as a line of the log for people: log lines, warnings, states, requests, faults, resizes and traces."""
    if (words := _WORDS.get(event.type)) is None or (line := words(event.data)) is None:
        return None
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.time))
    return f"{when} {line}"


def _latencies(counted: Metrics | Progress) -> tuple[LatencyCounts, LatencyCounts]:
    return counted.fetch_latency, counted.push_latency


def _who(data: dict[str, Any]) -> str:
    """Says a line of the log: an actor's code, or the run, whose lines have a level."""
    return f"{data['actor'].replace('/', ' ')} |" if "actor" in data else str(data.get("level", "info")).upper()


def _request(data: dict[str, Any]) -> str:
    by = data["by"]
    asked = "".join(f", {name} {value}" for name, value in data.items() if name not in ("action", "by"))
    return f"REQUEST {data['action']}{asked}, by {by['user']} from {by['address'] or 'this machine'}"


def _resize(data: dict[str, Any]) -> str:
    batch = f", batch {data['batch']}" if "batch" in data else ""
    moved = [f"; {what}: {', '.join(map(_short, data[what]))}" for what in ("joined", "left") if data.get(what)]
    workers = data["workers"]
    return f"RESIZE {workers} worker{'' if workers == 1 else 's'}{batch}{''.join(moved)}"


def _trace(data: dict[str, Any]) -> str | None:
    """None while it is recorded."""
    if "file" not in data and "why" not in data:
        return None
    why = f": {data['why']}" if "why" in data else ""
    if "file" not in data:
        return f"TRACE worker/{data['worker']} has recorded none{why}"
    return f"TRACE worker/{data['worker']}, {data['steps']} of {data['asked']} steps in traces/{data['file']}{why}"


_WORDS: dict[str, Callable[[dict[str, Any]], str | None]] = {
    "log": lambda data: f"{_who(data)} {data.get('message', '')}",
    "warning": lambda data: f"WARNING {data.get('message', '')}",
    "state": lambda data: f"STATE {data['state']} {data.get('message') or data.get('reason') or ''}".rstrip(),
    "request": _request,
    "fault": lambda data: f"FAULT {_short(data['actor'])} {data['why']}",
    "resize": _resize,
    "trace": _trace,
}


def _short(actor: str) -> str:
    """An actor's name within its run."""
    return actor.partition("/")[2] or actor


def _name(actor: Any) -> str:
    return str(actor.get("name", "")) if isinstance(actor, dict) else str(actor)
