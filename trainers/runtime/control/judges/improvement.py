"""Whether a run gets better, by one metric of its evaluations."""

import math
from dataclasses import dataclass
from typing import Any

from trainers.errors import SpecRejected
from trainers.events import headline_of, measured_in
from trainers.spec.improvement import MetricChoice


@dataclass
class Improvement:
    """Looks at one evaluation after the other, as the log has them."""

    field: str
    """Of the spec, for what is refused."""
    choice: MetricChoice
    min_delta: float = 0.0
    best: float | None = None
    since: int = 0
    """Evaluations in a row that were no improvement."""
    metric: str = ""
    """The name of the metric, once there was an evaluation."""

    def add(self, evaluation: dict[str, Any]) -> bool:
        """Whether this evaluation is better than all before it.

        Raises:
            SpecRejected: It does not have the metric, or nobody knows which of two values is better.
        """
        self.metric, more_is_better = self._direction(evaluation)
        found = measured_in(evaluation)[self.metric]
        value = math.nan if found is None else found
        gain = 0.0 if self.best is None else (value - self.best) * (1 if more_is_better else -1)
        is_better = not math.isnan(value) and (self.best is None or gain > self.min_delta)
        self.best = value if is_better else self.best
        self.since = 0 if is_better else self.since + 1
        return is_better

    def _direction(self, evaluation: dict[str, Any]) -> tuple[str, bool]:
        """The metric, and whether more of it is better."""
        headline, more_is_better = headline_of(evaluation) or ("loss", False)
        name = self.choice.metric or headline
        if name not in (measured := measured_in(evaluation)):
            there = ", ".join(sorted(measured))
            raise SpecRejected(f"{self.field}.metric: the task does not measure {name}; it measures {there}")
        if self.choice.mode != "auto":
            return name, self.choice.mode == "max"
        if name == headline:
            return name, more_is_better
        if name == "loss":
            return name, False
        raise SpecRejected(f"{self.field}.mode: say whether more of {name} is better (max) or less (min)")
