"""How long each worker computes for each minibatch: drawn from the measured spread, with a seed."""

import numpy as np

from trainers.cost.schedules.fleet import Floats
from trainers.cost.workload import Pace

LEAST = 0.1
"""Of the mean: no minibatch is quicker."""


def passes(pace: Pace, shape: tuple[int, ...], slowness: Floats, rng: np.random.Generator) -> Floats:
    """Seconds of forward and backward passes: normal with the pace's mean and spread, cut at a tenth of the mean.

    slowness: How many times as long each worker takes; it is broadcast to `shape`.
    """
    drawn = 1 + pace.spread * rng.standard_normal(shape)
    found: Floats = pace.passes_s * slowness * np.maximum(drawn, LEAST)
    return found
