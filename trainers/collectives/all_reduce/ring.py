"""The ring, or bucket, algorithm (paper 4, section 4.1; Barnett et al. 1994).

Every worker sends to its right neighbour and receives from its left one only. 2 (p - 1) steps, in each of which 1/p of
the vector moves: 2 (p - 1)/p b bytes in all, the least that any all-reduce sends.
"""

from torch import Tensor

from trainers.collectives.all_reduce.base import AllReduce, AllReduceCost, numel
from trainers.collectives.messages import Messages
from trainers.optim.slices import spans


def reduce_scatter(messages: Messages, vector: Tensor) -> slice:
    """The sum of cut i begins at worker i and passes once around the ring; each worker on the way adds its own."""
    p, rank = messages.size, messages.rank
    cuts = spans(vector.numel(), p)
    inbox = vector.new_empty(max(map(numel, cuts)))
    for step in range(p - 1):
        out, mine = cuts[(rank - step) % p], cuts[(rank - step - 1) % p]
        arrived = inbox[: numel(mine)]
        messages.step([(vector[out], (rank + 1) % p)], [(arrived, (rank - 1) % p)])
        vector[mine] += arrived
    return cuts[(rank + 1) % p]


def all_gather(messages: Messages, vector: Tensor) -> None:
    """Each finished cut passes once more around the ring."""
    p, rank = messages.size, messages.rank
    cuts = spans(vector.numel(), p)
    for step in range(p - 1):
        out, new = cuts[(rank + 1 - step) % p], cuts[(rank - step) % p]
        messages.step([(vector[out], (rank + 1) % p)], [(vector[new], (rank - 1) % p)])


def cost(p: int) -> AllReduceCost:
    """2 (p - 1) steps, 2 (p - 1)/p b bytes."""
    return AllReduceCost(2 * (p - 1), 2 * (p - 1) / p)


RING = AllReduce("ring", reduce_scatter, all_gather, cost)
