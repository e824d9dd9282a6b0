"""What a run tells: one numbered, gap-free log of events. Everything that shows a run reads it and nothing else.

| type | data |
|---|---|
| `state` | `state`, `reason` (CamelCase), `message` |
| `step` | a `Metrics` over all workers since the last one |
| `evaluation` | `epoch`, `examples`, `test_loss`, `test_accuracy` (0 to 1), `test_error_median`, `seconds` |
| `epoch` | `epoch` (just ended, from 1), `examples`, `train_loss`, `learning_rate` |
| `checkpoint` | `path`, `epoch`, `examples` |
| `log` | `level` (`info`, `warning`, `error`), `message` |
| `actors` | `workers`, `shards`: names as in Ray's dashboard, with node and process id |
| `result` | a `Result`; stands just before the terminal `state` of a run that succeeded |
"""

import statistics
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

EventType = Literal["state", "step", "evaluation", "epoch", "checkpoint", "log", "actors", "result"]


class State(StrEnum):
    """Where a job is."""

    QUEUED = "QUEUED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    CANCELLING = "CANCELLING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_terminal(self) -> bool:
        """Whether nothing follows."""
        return self in (State.SUCCEEDED, State.FAILED, State.CANCELLED)


class Event(BaseModel):
    """One line of the log."""

    model_config = ConfigDict(frozen=True)

    seq: int
    """From 1, without a gap."""

    time: float
    """Seconds since 1970, of the coordinator's clock."""

    type: EventType
    data: dict[str, Any]

    @property
    def is_terminal(self) -> bool:
        """Whether the log ends here."""
        return self.type == "state" and State(self.data["state"]).is_terminal


class Metrics(BaseModel):
    """What all workers did since the last report."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    step: int
    """Updates applied so far (synchronous steps, or pushes)."""
    epoch: float
    """Passes over the training set so far, with its fraction."""
    examples: int
    """Examples trained so far."""
    examples_per_s: float
    """Over the time since the last report."""
    loss: float
    """Mean over the examples since the last report."""
    learning_rate: float
    wait_data_s: float
    """Worker seconds spent waiting for data since the last report."""
    wait_communication_s: float
    """Worker seconds spent waiting for other workers or shards since the last report."""
    compute_s: float
    """Worker seconds spent computing since the last report."""
    workers: int
    """Workers that reported."""
    staleness: dict[int, int]
    """How many updates so far were applied at which staleness, in updates between fetch and application."""


class Result(BaseModel):
    """How a run ended, as `millrace run -o json` prints it."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    job_id: str
    state: State
    epochs: float
    examples: int
    test_accuracy: float | None
    test_loss: float | None
    test_error_median: float | None = None
    """Median of 1 - accuracy over the evaluations at the ends of the last 5 epochs (paper 4, section 5.1); null where
    there was none."""
    train_loss: float | None
    """Mean over the last epoch."""
    examples_per_s: float
    """Mean over the time from the first step to the last."""
    wall_s: float
    """From the first event to the last."""
    algorithm: str
    workers: int
    model_path: str | None
    """`model.safetensors`, where the run left one."""
    message: str
    """The last state's sentence."""


MEDIAN_EPOCHS = 5


def error_median(evaluations: Iterable[tuple[int, float]]) -> float | None:
    """Median test error over the last 5 epochs (paper 4, section 5.1), from pairs of epoch and accuracy."""
    told = list(evaluations)
    last = max((epoch for epoch, _ in told), default=0)
    errors = [1 - accuracy for epoch, accuracy in told if epoch > last - MEDIAN_EPOCHS]
    return statistics.median(errors) if errors else None
