"""A trial's curve, folded from its event log: what the ledger, the report and early stopping look at."""

from pathlib import Path
from typing import Any

from service.scaling.evidence import Point
from trainers import Event, JournalReader, State, error_median


class Curve:
    """What a trial's log says so far. Feed it every event once, in order; a log may tell of several starts."""

    def __init__(self) -> None:
        self.by_epoch: dict[float, Point] = {}
        self.accuracies: dict[int, float] = {}
        self.train_loss: float | None = None
        self.seconds = 0.0  # of training: the time between two starts is not counted
        self.last_time: float | None = None
        self.training = False
        self.ended: tuple[State, str, str] | None = None

    def add(self, event: Event) -> bool:
        """Take in one more event. Returns whether it is an evaluation."""
        if self.training and self.last_time is not None:
            self.seconds += max(0.0, event.time - self.last_time)
        self.last_time = event.time
        data = event.data
        match event.type:
            case "state":
                state = State(data["state"])
                self.training = self.training and state is not State.STARTING
                if state.is_terminal:
                    self.ended = (state, data.get("reason", ""), data.get("message", ""))
            case "step":
                self.training = True
            case "epoch":
                self.train_loss = data.get("train_loss")
                self._point(data["epoch"], data["examples"])
            case "evaluation":
                self.accuracies[data["epoch"]] = data["test_accuracy"]
                self._point(
                    data["epoch"], data["examples"], test_error=1 - data["test_accuracy"], test_loss=data["test_loss"]
                )
                return True
            case _:
                pass
        return False

    @property
    def error(self) -> float | None:
        """Median test error of the last 5 epochs."""
        return error_median(self.accuracies.items())

    @property
    def points(self) -> tuple[Point, ...]:
        """In the order of training."""
        return tuple(self.by_epoch[epoch] for epoch in sorted(self.by_epoch))

    def _point(self, epoch: float, examples: int, **figures: Any) -> None:
        before = self.by_epoch.get(epoch) or Point(examples=examples, epoch=epoch, seconds=self.seconds)
        told = {"train_loss": self.train_loss} | figures if "test_error" not in figures else figures
        if before.train_loss is None:
            told = {"train_loss": self.train_loss} | told
        self.by_epoch[epoch] = before.model_copy(update=told)


def read_curve(run_dir: Path) -> Curve:
    """The whole curve of a run, as far as its log goes."""
    curve = Curve()
    for event in JournalReader(run_dir).read():
        curve.add(event)
    return curve
