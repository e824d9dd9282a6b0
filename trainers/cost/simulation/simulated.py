"""What a simulation says of one number of workers, as plain values. Imports no torch."""

from pydantic import Field

from trainers.cost.figures import Figures

STEPS = 1000
"""Of each worker, after those that are not counted."""
WARM_UP = 0.1
"""Of the steps: they come before, and are not counted, since queues build up first."""
BLOCKS = 20
"""Parts of the run whose rates tell how sure the mean is."""


class Simulated(Figures):
    """A run of so many steps, after a tenth as many that are not counted."""

    examples_per_s: float
    low: float
    """The rate's 5th percentile over blocks of a twentieth of the run."""
    high: float
    """Its 95th."""
    waiting_s: float
    """Of a step: the mean of what workers wait for slower ones, or in front of a shard."""
    staleness: dict[int, float] = Field(default_factory=dict)
    """Updates that the parameters had got since a worker fetched them -> share of the pushes; empty where every update
    has the gradients of the newest parameters."""
    steps: int
    seed: int

    @property
    def mean_staleness(self) -> float:
        """Over the pushes."""
        return sum(behind * share for behind, share in self.staleness.items())
