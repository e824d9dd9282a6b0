"""How often whole vectors pass through a worker's memory in a step, beside the passes and the update that a profile has
timed. The unit is a copy, a vector that is read once and written once, whose seconds a profile knows.
"""

import numpy as np
from numpy.typing import NDArray

from trainers.cost.schedules.fleet import Fleet, Floats
from trainers.cost.schedules.shares import shipped_vectors

READ = WRITTEN = 0.5
IN_PLACE = READ + WRITTEN
ADDED = 2 * READ + WRITTEN
COPIED = 1.0


def copies_of_sum(fleet: Fleet, beside: bool = False) -> Floats:
    """Of a canonical sum by messages, after which each worker updates all parameters: its share is added up where the
    whole sum is gathered. Where a switch's workers share memory, its own share is copied to where the others' arrive,
    and the sum to where it is gathered; or, of sums that travel beside the passes, what the switch has for others is
    added up before it is sent. Through one shared memory an update reads the parts where they lie. (C,)."""
    everybody, _ = shipped_vectors(fleet.virtual, fleet.workers)
    joined = (READ * fleet.most + WRITTEN) * (1 / fleet.most - 1 / fleet.workers)
    extra = joined if beside else 2 * COPIED / fleet.workers
    is_composed = fleet.memory_is_shared & (fleet.nodes > 1) & (fleet.most > 1)
    found = (READ * everybody + WRITTEN) / fleet.workers + np.where(is_composed, extra, 0.0)
    return _if_several(fleet, np.where(_sees_all(fleet), 0.0, found))


def copies_of_average(fleet: Fleet, laid_down: float = COPIED + IN_PLACE, taken: float = COPIED) -> Floats:
    """Of an average: each virtual worker's vector is laid down with its weight, shares are added up, and what comes out
    goes back to each virtual worker. (C,).

    Args:
        fleet: The candidates.
        laid_down: Copies of each virtual worker's vector before the sum.
        taken: And after it.
    """
    everybody, _ = shipped_vectors(fleet.virtual, fleet.workers)
    share = np.where(_sees_all(fleet), 0.0, COPIED) + READ * everybody + WRITTEN
    return _if_several(fleet, (laid_down + taken) * fleet.minibatches + share / fleet.workers)


def _sees_all(fleet: Fleet) -> NDArray[np.bool_]:
    """Whether the workers read each other's vectors where they lie."""
    found: NDArray[np.bool_] = (fleet.nodes == 1) & fleet.memory_is_shared
    return found


def _if_several(fleet: Fleet, found: Floats) -> Floats:
    whole: Floats = np.where(fleet.workers > 1, found, 0.0)
    return whole
