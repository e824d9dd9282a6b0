"""The learning curve of a trial, folded from its event log, for the trial store, the report and early stopping."""

from pathlib import Path
from typing import Any

from service.scaling.evidence import Point
from service.status import Status
from trainers import Event, EventLogReader, State, error_median


class TrialCurve:
    """The curve of one trial so far. Feed it every event once, in order; a log may contain several starts."""

    def __init__(self) -> None:
        self.by_epoch: dict[float, Point] = {}
        self.accuracies: dict[int, float] = {}  # at the ends of epochs
        self.between: dict[float, float] = {}  # accuracies within epochs
        self.train_loss: float | None = None
        self.seconds = 0.0  # of training: the time between two starts is not counted
        self.last_time: float | None = None
        self.training = False
        self.final: Status | None = None

    def add(self, event: Event) -> bool:
        """Take in one more event. Returns whether it is an evaluation."""
        if self.training and self.last_time is not None:
            self.seconds += max(0.0, event.time - self.last_time)
        self.last_time = event.time
        data = event.data
        match event.type:
            case "state":
                status = Status.of_event(event)
                self.training = self.training and status.state is not State.STARTING
                if status.state.is_terminal:
                    self.final = status
            case "step":
                self.training = True
            case "epoch":
                self.train_loss = data.get("train_loss")
                self._point(data["epoch"], data["examples"])
            case "evaluation":
                figures = {"test_loss": data["test_loss"]}
                if "test_accuracy" in data:
                    if data["epoch"] == int(data["epoch"]):  # the error is that at the ends of epochs
                        self.accuracies[data["epoch"]] = data["test_accuracy"]
                    else:
                        self.between[data["epoch"]] = data["test_accuracy"]
                    figures["test_error"] = 1 - data["test_accuracy"]
                self._point(data["epoch"], data["examples"], **figures)
                return True
            case _:
                pass
        return False

    @property
    def error(self) -> float | None:
        """Median test error of the last 5 epochs; where none was evaluated at its end, of what was measured between."""
        found: dict[int, float] | dict[float, float] = self.accuracies or self.between
        return error_median(found.items())

    @property
    def points(self) -> tuple[Point, ...]:
        """In the order of training."""
        return tuple(self.by_epoch[epoch] for epoch in sorted(self.by_epoch))

    def _point(self, epoch: float, examples: int, **figures: Any) -> None:
        before = self.by_epoch.get(epoch) or Point(examples=examples, epoch=epoch, seconds=self.seconds)
        if "test_loss" not in figures or before.train_loss is None:
            figures = {"train_loss": self.train_loss} | figures
        self.by_epoch[epoch] = before.model_copy(update=figures)


def read_curve(run_dir: Path) -> TrialCurve:
    """The curve of a run, as far as its log goes."""
    curve = TrialCurve()
    for event in EventLogReader(run_dir).read():
        curve.add(event)
    return curve
