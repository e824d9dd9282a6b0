"""All-reduce over nodes in three phases (paper 4, section 4.1).

(1) the vectors of the workers of a node are summed into one; (2) the first workers of the nodes sum these among
themselves; (3) the result is broadcast within each node. Between nodes only one vector a node travels.
"""

from functools import partial

from torch import Tensor

from trainers.collectives.all_reduce.base import AllReduce, AllReduceCost
from trainers.collectives.messages import Messages, SubgroupMessages


def reduce(messages: Messages, vector: Tensor) -> None:
    """Sum into worker 0's vector, along a binomial tree: ceil(log2 p) steps."""
    inbox = vector.new_empty(vector.numel())
    distance = 1
    while distance < messages.size and not messages.rank & distance:
        if messages.rank + distance < messages.size:
            messages.step(receive=[(inbox, messages.rank + distance)])
            vector += inbox
        distance *= 2
    if messages.rank:
        messages.step(send=[(vector, messages.rank - distance)])


def broadcast(messages: Messages, vector: Tensor) -> None:
    """Worker 0's vector to all, along the same tree from its root."""
    distance = 1
    while distance < messages.size and not messages.rank & distance:
        distance *= 2
    if messages.rank:
        messages.step(receive=[(vector, messages.rank - distance)])
    while distance > 1:
        distance //= 2
        if messages.rank + distance < messages.size:
            messages.step(send=[(vector, messages.rank + distance)])


def firsts(nodes: tuple[int, ...]) -> list[int]:
    """The first worker of each node."""
    return sorted({node: rank for rank, node in reversed(list(enumerate(nodes)))}.values())


def on_node(messages: Messages) -> SubgroupMessages:
    """Messages among the workers of one's own node."""
    mine = messages.nodes[messages.rank]
    return SubgroupMessages(messages, [rank for rank, node in enumerate(messages.nodes) if node == mine])


def reduce_scatter(between: AllReduce, messages: Messages, vector: Tensor) -> slice:
    """Phase 1, and the first half of phase 2. Only the first workers of the nodes have a part of the sum."""
    reduce(on_node(messages), vector)
    leaders = firsts(messages.nodes)
    if messages.rank not in leaders:
        return slice(0, 0)
    return between.reduce_scatter(SubgroupMessages(messages, leaders), vector)


def all_gather(between: AllReduce, messages: Messages, vector: Tensor) -> None:
    """The second half of phase 2, and phase 3."""
    leaders = firsts(messages.nodes)
    if messages.rank in leaders:
        between.all_gather(SubgroupMessages(messages, leaders), vector)
    broadcast(on_node(messages), vector)


def three_phase(between: AllReduce, nodes: tuple[int, ...]) -> AllReduce:
    """The algorithm for workers on these nodes, with `between` among the first workers."""
    largest = max(nodes.count(node) for node in nodes)
    levels = (largest - 1).bit_length()

    def cost(_: int) -> AllReduceCost:
        """Of the first worker of the largest node: it receives ceil(log2 g) vectors and sends as many."""
        inner = between.cost(len(set(nodes)))
        return AllReduceCost(2 * levels + inner.steps, levels + inner.vectors)

    return AllReduce("three_phase", partial(reduce_scatter, between), partial(all_gather, between), cost)
