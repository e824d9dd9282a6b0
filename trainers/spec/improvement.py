"""Sections that judge a run by one of its metrics: the best model, and when to stop."""

import difflib
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, ValidationInfo

from trainers.section import Section
from trainers.spec.evaluate import EvaluateSpec
from trainers.tasks.config import METRICS, TaskSpec


class MetricChoice(Section):
    """A metric of the evaluations, and which of two values of it is better."""

    metric: str = Field(default="", max_length=200)
    """Its name, as the task tells it (`loss`, `accuracy`, `perplexity` ...). Left out: the one by which runs of the
    task are compared."""

    mode: Literal["auto", "max", "min"] = "auto"
    """Whether more (`max`) or less of it (`min`) is better. `auto` knows that of the metrics of tasks by name, and of
    `loss` and the headline of a task of your own."""


class EarlyStopSpec(MetricChoice):
    """Ends a run that gets no better (Prechelt 1998)."""

    patience: int = Field(default=3, ge=1, le=1_000_000)
    """Evaluations in a row without an improvement, after which the run ends."""

    min_delta: float = Field(default=0.0, ge=0)
    """By how much a value must be better than the best one before it to count as an improvement."""


def _named(value: Any) -> Any:
    return value if value is None or isinstance(value, dict | BaseModel) else {"metric": value}


BY_METRIC = BeforeValidator(_named, json_schema_input_type=MetricChoice | str | None)
"""Lets a metric's name stand for the section."""

STOP_BY_METRIC = BeforeValidator(_named, json_schema_input_type=EarlyStopSpec | str | None)


Choice = TypeVar("Choice", bound=MetricChoice)


def measured(choice: Choice, task: TaskSpec | None) -> Choice:
    """The choice with what is known of its metric: whether more of it is better.

    What a task of the user's measures is found out when it first does.

    Raises:
        ValueError: The task measures something else.
    """
    metrics = METRICS.get(task.name) if task is not None else None
    if task is None or metrics is None or not choice.metric:
        return choice
    if choice.metric not in metrics:
        near = difflib.get_close_matches(choice.metric.removeprefix("test_").removeprefix("validation_"), metrics)
        meant = f"; did you mean {', '.join(near)}?" if near else "; take one of these"
        raise ValueError(f"{task.name} measures {', '.join(metrics)}, and no {choice.metric!r}{meant}")
    return choice if choice.mode != "auto" else choice.model_copy(update={"mode": metrics[choice.metric]})


def judges_evaluations(early_stop: EarlyStopSpec | None, info: ValidationInfo) -> EarlyStopSpec | None:
    """Raises ValueError where there are no evaluations before the end, or none of such a metric."""
    evaluate: EvaluateSpec | None = info.data.get("evaluate")
    if early_stop is None:
        return None
    if evaluate is None or evaluate.every_epochs or evaluate.every_steps or evaluate.every_s:
        return measured(early_stop, info.data.get("task"))
    raise ValueError("there are no evaluations before the end to stop by; set evaluate.every_epochs or every_steps")
