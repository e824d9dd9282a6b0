"""Which all-reduce algorithm is the fastest, by the number of workers and the size of the vector."""

from functools import lru_cache

from trainers.collectives.all_reduce.base import AllReduce
from trainers.collectives.all_reduce.binary_blocks import BINARY_BLOCKS
from trainers.collectives.all_reduce.ring import RING
from trainers.collectives.all_reduce.three_phase import three_phase

STEP_S = 1e-4
"""What a communication step costs however little is sent. Measured on one machine: 0.06 ms on shared memory, 0.13 ms by
TCP."""

BYTES_PER_S = 1e9
"""What a worker sends in a second beyond that, as on a network of 10 Gbit/s. One machine gave 2 to 3 GB/s."""

CHANGING = 1.1
"""How much longer the same bytes take where partners change from step to step: between four nodes, over TCP, halving
and doubling had 0.77 to 1.05 of the ring's rate, in which everyone sends to the same neighbour throughout. Measured at
0.1 and 1 Gbit/s, alone and two at a time, with the congestion controls BBR and CUBIC."""


def fastest(p: int, numel: int) -> AllReduce:
    """The algorithm for which steps x STEP_S + bytes / BYTES_PER_S is least, of bytes that take longer where partners
    change.

    Halving and doubling sends what the ring sends in fewer steps: it is for small vectors, the ring for large ones. So
    are binary blocks, which save steps and cost bytes.
    """

    def seconds(algorithm: AllReduce) -> float:
        cost, slower = algorithm.cost(p), CHANGING if algorithm is BINARY_BLOCKS and p > 2 else 1.0
        return cost.steps * STEP_S + slower * cost.vectors * 4 * numel / BYTES_PER_S

    return min(BINARY_BLOCKS, RING, key=seconds)


@lru_cache(maxsize=4096)
def choose(name: str, nodes: tuple[int, ...], numel: int) -> AllReduce:
    """The algorithm of that name, or for `auto` the one for vectors of this size on workers on these nodes.

    Where several nodes have more than one worker, `auto` takes the three phases (paper 4): what a node sends to the
    others is then one vector, however many workers it has.
    """
    p, num_nodes = len(nodes), len(set(nodes))
    if name == "auto":
        name = "three_phase" if 1 < num_nodes < p else "fastest"
    match name:
        case "ring":
            return RING
        case "halving_doubling" | "binary_blocks":
            return BINARY_BLOCKS
        case "three_phase":
            return three_phase(fastest(num_nodes, numel), nodes)
    return fastest(p, numel)
