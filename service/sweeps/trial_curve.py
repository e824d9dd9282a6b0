"""The learning curve of a trial, folded from its event log, for the trial store, the report and early stopping."""

import math
from pathlib import Path
from typing import Any

from service.scaling.counted import Counted
from service.scaling.evidence import Point
from service.scaling.metric import Metric
from service.status import Status
from service.sweeps.spec import ReportSpec
from trainers import Event, EventLogReader, State, is_judged, last_median, metrics_of


class TrialCurve:
    """The curve of one trial so far. Feed it every event once, in order; a log may contain several starts."""

    def __init__(self, asked: ReportSpec | None = None) -> None:
        """asked: What trials are compared by; None: the task's headline."""
        self.asked = asked or ReportSpec()
        self.metric: Metric | None = None  # until it was measured
        self.measured: tuple[str, ...] = ()  # what the task measures
        self.by_epoch: dict[float, Point] = {}
        self.costs: dict[int, float] = {}  # at the ends of epochs
        self.between: dict[float, float] = {}  # costs within epochs
        self.epoch = 0.0  # of the last evaluation
        self.train_loss: float | None = None
        self.start_loss: float | None = None  # of the first step
        self.seconds = 0.0  # of training: the time between two starts is not counted
        self.last_time: float | None = None
        self.training = False
        self.final: Status | None = None
        self.counted = Counted()

    def add(self, event: Event) -> bool:
        """Take in one more event. Returns whether it is an evaluation by which runs are judged."""
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
                self.counted.add(event)
                self.start_loss = data.get("loss") if self.start_loss is None else self.start_loss
            case "epoch":
                self.train_loss = data.get("train_loss")
                self._point(data["epoch"], data["examples"])
            case "evaluation":
                if not is_judged(data):
                    return False
                loss, self.epoch = metrics_of(data).get("loss"), data["epoch"]
                self._point(data["epoch"], data["examples"], test_loss=loss, **self._compared(data))
                return True
            case _:
                pass
        return False

    @property
    def error(self) -> float | None:
        """Median test error, or cost of another metric, at the ends of the last 5 epochs; where none was evaluated at
        its end, of what was measured between. A run that ended within an epoch has that epoch's end there."""
        if not self.costs:
            return last_median(self.between.items())
        ended_within = self.final is not None and self.final.state is State.SUCCEEDED and self.epoch in self.between
        last = {math.ceil(self.epoch): self.between[self.epoch]} if ended_within else {}
        return last_median({**self.costs, **last}.items())

    @property
    def points(self) -> tuple[Point, ...]:
        """In the order of training."""
        return tuple(self.by_epoch[epoch] for epoch in sorted(self.by_epoch))

    def _compared(self, evaluation: dict[str, Any]) -> dict[str, float]:
        """What trials are compared by, of an evaluation: nothing where it was not measured, or is not finite."""
        self.measured = tuple(metrics_of(evaluation))
        found = Metric.of(evaluation, self.asked.metric, self.asked.higher_is_better)
        if found is None:
            return {}
        self.metric, cost, epoch = found, found.cost(evaluation), evaluation["epoch"]
        if not math.isfinite(cost):
            return {}
        if epoch == int(epoch):  # what counts is measured at the ends of epochs
            self.costs[epoch] = cost
        else:
            self.between[epoch] = cost
        return {"test_error": cost}

    def _point(self, epoch: float, examples: int, **figures: Any) -> None:
        before = self.by_epoch.get(epoch) or Point(examples=examples, epoch=epoch, seconds=self.seconds)
        if "test_loss" not in figures or before.train_loss is None:
            figures = {"train_loss": self.train_loss} | figures
        self.by_epoch[epoch] = before.model_copy(update=figures)


def read_curve(run_dir: Path, asked: ReportSpec | None = None) -> TrialCurve:
    """The curve of a run, as far as its log goes. asked: What trials are compared by; None: the task's headline."""
    curve = TrialCurve(asked)
    for event in EventLogReader(run_dir).read():
        curve.add(event)
    return curve
