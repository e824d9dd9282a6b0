"""Workers that think and are served: the machine repairman's model, of which P = T/tau is the corner (paper 2, 5.2.1).

K workers compute for T, then ask a shard that needs tau for each of them. Fairly shared or first come, first served
with exponential times, the mean is exact, and for a fairly shared shard whatever the distributions are (Baskett et al.
1975). It is computed by mean value analysis (Reiser and Lavenberg 1980): who arrives finds the queue of K - 1.
"""

import numpy as np

from trainers.cost.schedules.fleet import Floats, Ints


def response_s(workers: Ints, think_s: Floats, service_s: Floats) -> Floats:
    """Waiting and service of one visit; (C,) each. 0 workers: nobody waits."""
    queue, found = np.zeros(len(workers)), np.array(service_s, dtype=float)
    for count in range(1, int(workers.max(initial=0)) + 1):
        response = service_s * (1 + queue)
        cycle = think_s + response
        queue = np.where(cycle > 0, count * response / np.where(cycle > 0, cycle, 1.0), 0.0)
        found = np.where(workers == count, response, found)
    return found


def corner(think_s: Floats, service_s: Floats) -> Floats:
    """Workers beyond which one more brings nothing: where K / (T + tau) meets 1 / tau. Paper 2 has T/tau, for T much
    larger than tau."""
    found: Floats = (think_s + service_s) / service_s
    return found
