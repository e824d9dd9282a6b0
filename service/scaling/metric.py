"""The metric that a sweep's trials are compared by.

Everything that compares reckons with its **cost**, of which less is better: the test error where it is the accuracy,
the value itself where less of it is better, and its negative where more is.
"""

from typing import Any, Literal, Self

from pydantic import ConfigDict

from trainers import Documented, headline_of, metrics_of, set_of

HIGHER = ("accuracy", "r2", "iou", "map", "f1", "recall", "precision", "bleu")
"""End the names of metrics of which more is better, where no task says it."""


class Metric(Documented):
    """Its name and direction."""

    model_config = ConfigDict(frozen=True)

    name: str = "error"
    """`error`: 1 - accuracy; any other name is that of a metric of the task."""
    higher_is_better: bool = False
    measured_on: Literal["test", "validation"] = "test"
    """The set by which runs are judged."""

    @classmethod
    def of(cls, evaluation: dict[str, Any], name: str = "", higher_is_better: bool | None = None) -> Self | None:
        """The one that an `evaluation` holds; None where it does not.

        Args:
            name: Of the metric; empty: the task's headline.
            higher_is_better: None: as the task says of its headline, or else by the name.
        """
        told = headline_of(evaluation)
        name = name or (told[0] if told else "")
        if name not in metrics_of(evaluation):
            return None
        measured_on = set_of(evaluation)
        if name == "accuracy":
            return cls(measured_on=measured_on)
        if higher_is_better is None:
            higher_is_better = told[1] if told and told[0] == name else name.endswith(HIGHER)
        return cls(name=name, higher_is_better=higher_is_better, measured_on=measured_on)

    @property
    def heading(self) -> str:
        """Of what a trial came to, in a table."""
        return f"median {self.name}"

    @property
    def explained(self) -> str:
        """What that is, in a sentence without its full stop."""
        return f"the {self.heading} is that over the evaluations of a run's last 5 epochs"

    @property
    def is_error(self) -> bool:
        """Whether it is a share of the examples."""
        return self.name == "error"

    @property
    def factor(self) -> int:
        """Of a cost, as it is shown: errors are shown in percent."""
        return 100 if self.is_error else -1 if self.higher_is_better else 1

    @property
    def worst(self) -> float:
        """The cost of a trial that has none: of guesses that are always wrong, or more than any."""
        return 1.0 if self.is_error else 1e30

    def cost(self, evaluation: dict[str, Any]) -> float:
        """Of an evaluation that holds it."""
        if self.is_error:
            return float(1 - metrics_of(evaluation)["accuracy"])
        value = float(metrics_of(evaluation)[self.name])
        return -value if self.higher_is_better else value

    def value(self, cost: float) -> float:
        """As the task measures it; an error stays one."""
        return -cost if self.higher_is_better else cost

    def number(self, cost: float) -> str:
        """A cost as it is shown, without its unit."""
        return f"{self.factor * cost:.2f}" if self.is_error else f"{self.factor * cost:.4g}"

    def told(self, cost: float | None) -> str:
        """A cost as it is shown."""
        return "-" if cost is None else self.number(cost) + self.unit

    @property
    def unit(self) -> str:
        """Behind a number."""
        return " %" if self.is_error else ""

    def spread(self, width: float, sign: str = "") -> str:
        """A standard deviation, or how much worse something is: in percentage points, or in the metric's own unit."""
        return f"{100 * width:{sign}.2f}" if self.is_error else f"{width:{sign}.4g}"

    def reaching(self, cost: float) -> str:
        """A target in words."""
        return f"an error of {self.told(cost)}" if self.is_error else f"{self.name} {self.told(cost)}"

    def gap(self, width: float) -> str:
        """The same with its unit."""
        return self.spread(width) + (" points" if self.is_error else "")


ERROR = Metric()
