"""What is measured of one contender in one round."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.measurement.workload import Timing, Workload


@dataclass(frozen=True)
class Measurement:
    """One contender, one round."""

    examples_per_s: float
    """All workers together."""
    cpu_s_per_step: float
    """CPU seconds of all processes that take part, divided by the minibatches trained."""
    details: dict[str, float] = field(default_factory=dict)
    """Other figures by name, where a contender has them."""


def from_timings(timings: Sequence[Timing], work: Workload) -> Measurement:
    """Rates add up over the workers; CPU seconds are a minibatch's."""
    rate = sum(t.steps * work.minibatch / t.seconds for t in timings)
    return Measurement(rate, sum(t.cpu_s for t in timings) / sum(t.steps for t in timings))
