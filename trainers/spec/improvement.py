"""Sections that judge a run by one of its metrics: the best model, and when to stop."""

from typing import Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationInfo

from trainers.section import Section
from trainers.spec.evaluate import EvaluateSpec


class MetricChoice(Section):
    """A metric of the evaluations, and which of two values of it is better."""

    metric: str = Field(default="", max_length=200)
    """Its name, as the task tells it (`loss`, `accuracy`, `perplexity` ...). Left out: the one by which runs of the
    task are compared."""

    mode: Literal["auto", "max", "min"] = "auto"
    """Whether more (`max`) or less of it (`min`) is better. `auto` knows that of `loss`, and of the one by which runs
    of the task are compared."""


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


def judges_evaluations(early_stop: EarlyStopSpec | None, info: ValidationInfo) -> EarlyStopSpec | None:
    """Raises ValueError where there are no evaluations before the end."""
    evaluate: EvaluateSpec | None = info.data.get("evaluate")
    if early_stop is None or evaluate is None or evaluate.every_epochs or evaluate.every_steps or evaluate.every_s:
        return early_stop
    raise ValueError("there are no evaluations before the end to stop by; set evaluate.every_epochs or every_steps")
