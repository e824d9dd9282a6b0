"""What a simulation says of one number of workers, as plain values. Imports no torch."""

from itertools import accumulate

from pydantic import Field

from trainers.cost.figures import Figures
from trainers.cost.simulation.timeline import Timeline

STEPS = 1000
"""Of each worker, after those that are not counted."""
WARM_UP = 0.1
"""Of the steps: they come before, and are not counted, since queues build up first."""
BLOCKS = 20
"""Parts of the run whose rates tell how sure the mean is."""


class Stragglers(Figures):
    """What it costs that workers meet, and the quicker ones wait for the slowest."""

    of: int
    """Workers that meet: all, or those of a group."""
    mean_s: float
    """By which the last that is waited for is later than the mean of all, at a meeting."""
    share: float
    """Of the time between two meetings."""
    without_one_s: float
    """What `mean_s` would be with the slowest left out: what one backup worker would bring."""
    quantiles_s: tuple[float, ...]
    """Of the meetings 0, 5, 10, ..., 100 % wait at most so long."""


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
    stragglers: Stragglers | None = None
    """Null where nobody waits for all of a group, or a group is of one."""
    timeline: Timeline
    """One step of an ordinary length, or the last whole one where workers go on by themselves."""
    steps: int
    seed: int

    @property
    def mean_staleness(self) -> float:
        """Over the pushes."""
        return sum(behind * share for behind, share in self.staleness.items())

    def staleness_at(self, share: float) -> int:
        """Updates that so large a share of the pushes is behind at most."""
        behind = sorted(self.staleness)
        reached = accumulate(self.staleness[each] for each in behind)
        return next((each for each, sum_ in zip(behind, reached, strict=True) if sum_ >= share), behind[-1])
