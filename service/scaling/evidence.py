"""Evidence: what a sweep's trials showed, as plain data. The report is a pure function of it."""

import json
import math
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, JsonValue

from service.scaling.counted import Quantity
from service.scaling.metric import ERROR, Metric
from trainers import Documented

DIVERGED = "DivergesFromBaseline"
"""Begins the reason of a trial that was stopped because its curve had separated from the baseline's."""
LEARNED_NOTHING = ("LossNotFinite", "LearnedNothing", "Diverged")
"""Begin the reasons of trials whose loss became NaN or infinite, or stayed at chance or above its start."""
AT_START = 0.98
"""Of the loss of its first step: a trial that was stopped above it had learned nothing until then."""
RECIPE = ("batch", "workers", "rule", "scaling", "warmup", "lr", "multiple", "seed", "optimizer.lr")
"""Swept paths that a trial's own fields tell already, and those below them; any other path makes a variant."""

Rule = Literal["none", "sqrt", "linear"]
Batch = Annotated[int, Field(ge=1, le=2**40)]
Rate = Annotated[float, Field(ge=1e-12, le=1e12)]
Cost = Annotated[float, Field(allow_inf_nan=False)]


class ReportModel(Documented):
    """Root of evidence and report: frozen, its fields documented; what is not finite is written as a word."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")


class Point(ReportModel):
    """One moment of a trial. What was not measured then is null."""

    examples: int = Field(ge=0, le=2**60)
    """Trained so far."""
    epoch: float = Field(ge=0, le=1e9)
    seconds: float = Field(ge=0, le=1e12)
    """Of training, since the trial's first step."""
    train_loss: float | None = None
    """Mean over the examples since the point before; it may be infinite or NaN."""
    test_error: Cost | None = None
    """The test error, or the cost of whatever metric is compared."""
    test_loss: float | None = None


class Trial(ReportModel):
    """One run of the sweep."""

    id: str
    batch: Batch
    """Examples an update."""
    rule: Rule
    warmup: str
    """`none`, or its kind and what else tells it from others: `gradual 5` lasts 5 epochs."""
    lr: Rate
    """The learning rate in force after scaling and warm-up."""
    multiple: Rate = 1.0
    """Of the base rate, as it was swept; the report goes by `lr`."""
    seed: int
    state: str
    """SUCCEEDED, FAILED, STOPPED, CANCELLED; any other has not ended."""
    reason: str = ""
    """Why it ended so. Two words are understood at its beginning: LossNotFinite and DivergesFromBaseline."""
    error: Cost | None = None
    """Median test error, or cost, of the last 5 epochs (paper 4, section 5.1); null: taken from the points."""
    points: tuple[Point, ...] = ()
    """In the order of training."""
    start_loss: float | None = None
    """Training loss of its first step, which is that of guessing."""
    settings: dict[str, JsonValue] = {}
    """Swept paths of the spec and this trial's values."""
    quantities: dict[Quantity, float] = {}
    """What its workers counted."""

    @property
    def variant(self) -> tuple[tuple[str, str], ...]:
        """The swept settings that are neither batch, rule, warm-up, rate nor seed: trials are compared within them."""
        return tuple(sorted((path, _word(value)) for path, value in self.settings.items() if not _tells_recipe(path)))


def _tells_recipe(path: str) -> bool:
    return any(path == known or path.startswith(known + ".") for known in RECIPE)


def _word(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


class Question(ReportModel):
    """What the sweep was to find out."""

    base_batch: Batch
    base_lr: Rate
    """In force at the base batch: the rules scale from it."""
    metric: Metric = ERROR
    """What is compared."""
    tolerance: float = Field(default=0.005, gt=0)
    """Error above the baseline's mean that is still as good, absolute: 0.005 is half a percent of the test examples.
    Of another metric, in its own unit."""
    target_error: Cost | None = None
    """For time to target, an error or a cost; null: the baseline's mean and the tolerance."""

    @property
    def broken_excess(self) -> float:
        """What a cell that broke counts as above the baseline: an error of 100 %, 200 of the usual tolerances."""
        return 1.0 if self.metric.is_error else 200 * self.tolerance

    def predicted_lr(self, rule: Rule, batch: int) -> float:
        """The rate that a rule gives at a batch: paper 4, section 2.1 (linear), paper 1, section 5 (sqrt)."""
        k = batch / self.base_batch
        return self.base_lr * {"none": 1.0, "sqrt": math.sqrt(k), "linear": k}[rule]

    def multiple(self, trial: Trial) -> float:
        """Of the rate that its rule predicts, to six digits: 1 where the trial took the rule's own."""
        return float(f"{trial.lr / self.predicted_lr(trial.rule, trial.batch):.6g}")


class Evidence(ReportModel):
    """A sweep's question and its trials."""

    name: str
    question: Question
    trials: tuple[Trial, ...]

    def to_json(self) -> str:
        """The same as text; infinity and NaN as words, which from_json reads."""
        return self.model_dump_json()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Evidence from text. Raises pydantic's ValidationError."""
        return cls.model_validate_json(text)
