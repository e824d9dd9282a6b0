"""What a job shall reach: a metric of its task, on a set that it has, and the value."""

import re
from typing import NamedTuple

from service.spec import JobSpec
from trainers import MetricChoice, measured

TARGET = re.compile(r"(?:(test|validation)_)?(\w+) *= *(-?[0-9.]+(?:[eE][+-]?[0-9]+)?)")
LOWER = ("loss", "error", "error_median", "perplexity")
"""Ends of the names of metrics of which less is better, where the task does not tell it."""


class Target(NamedTuple):
    """A value that a metric shall reach."""

    metric: str
    """With its set, such as `test_accuracy`."""
    value: float
    is_lower: bool
    """Whether less is better."""

    def is_reached(self, value: float) -> bool:
        """Whether this is as good."""
        return value <= self.value if self.is_lower else value >= self.value


def read_target(text: str, spec: JobSpec) -> Target:
    """`test_accuracy=0.95`; a metric without a set is that of the set by which the job's runs are judged.

    Raises:
        ValueError: It is no target, the task has no such metric, or the job no such set.
    """
    if (match := TARGET.fullmatch(text.strip())) is None:
        raise ValueError(f"{text[:100]!r} is no target; write for instance test_accuracy=0.95")
    on, name, value = match.groups()
    # The median of the test error is no metric of the task, but is logged wherever the accuracy is.
    choice = measured(MetricChoice(metric="accuracy" if name == "error_median" else name), spec.task)
    validates = spec.data.has_validation
    if on is None and validates is None:
        raise ValueError(
            f"whether there is a validation set, only the data tell; write test_{name}={value}, or with such a set "
            f"validation_{name}={value}"
        )
    if on == "validation" and validates is False:
        raise ValueError(
            f"the job has no validation set, so its runs have no validation_{name}; write test_{name}={value}"
        )
    on = on or ("validation" if validates else "test")
    return Target(f"{on}_{name}", float(value), choice.mode == "min" or name.endswith(LOWER))
