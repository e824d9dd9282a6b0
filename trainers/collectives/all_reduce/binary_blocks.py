"""Recursive halving and doubling, and binary blocks, its form for any number of workers.

Paper 4, section 4.1; Thakur et al. 2005, "Optimization of collective communication operations in MPICH"; Rabenseifner
2004, "Optimization of collective reduction operations".

The workers are divided into blocks of powers of two, the largest first: 7 = 4 + 2 + 1. A power of two is one block, and
then this is recursive halving and doubling: 2 log2 p steps, 2 (p - 1)/p b bytes. Otherwise each block sums its own by
halving, hands its sum to the next larger block and gets the whole one back from there before doubling: two steps more
for each neighbouring block.
"""

from dataclasses import dataclass

from torch import Tensor

from trainers.collectives.all_reduce.base import AllReduce, AllReduceCost, numel
from trainers.collectives.messages import Messages, SubgroupMessages, Transfers
from trainers.optim.slices import spans


@dataclass(frozen=True)
class Halving:
    """One step within a block: who the partner is, and which half of the range at hand is kept, which given away."""

    partner: int
    kept: range
    given: range


def halvings(rank: int, size: int, cuts: range) -> list[Halving]:
    """The steps of worker `rank` of a block: the distance to the partner doubles, the range of cuts halves."""
    found, distance = [], 1
    while distance < size:
        lower, upper = cuts[: len(cuts) // 2], cuts[len(cuts) // 2 :]
        kept, given = (upper, lower) if rank & distance else (lower, upper)
        found.append(Halving(rank ^ distance, kept, given))
        cuts, distance = kept, 2 * distance
    return found


def blocks(p: int) -> list[range]:
    """The workers 0 .. p - 1 in blocks of powers of two, each larger than the next."""
    found, first = [], 0
    while first < p:
        size = 1 << (p - first).bit_length() - 1
        found.append(range(first, first + size))
        first += size
    return found


class BlockPosition:
    """Where a worker stands among the blocks, and how the vector is cut: into as many parts as the largest block has
    workers, so that the cuts of all blocks lie on each other.

    Worker i of a block holds, once that is halved, the cuts that workers i, i + s, i + 2s ... of the next larger block
    hold together, where s is its own block's size: the order of the bits of the cut is that of the rank's, reversed.
    """

    def __init__(self, messages: Messages, vector: Tensor) -> None:
        found = blocks(messages.size)
        at = next(i for i, block in enumerate(found) if messages.rank in block)
        self.messages, self.vector = messages, vector
        self.cuts = spans(vector.numel(), len(found[0]))
        self.block = found[at]
        self.larger = found[at - 1] if at else range(0)
        self.smaller = found[at + 1] if at + 1 < len(found) else range(0)
        self.index = messages.rank - self.block.start
        self.within = SubgroupMessages(messages, self.block)

    @property
    def halvings(self) -> list[Halving]:
        """This worker's steps within its block."""
        return halvings(self.index, len(self.block), range(len(self.cuts)))

    def span(self, cuts: range) -> slice:
        """The elements of neighbouring cuts."""
        return slice(self.cuts[cuts.start].start, self.cuts[cuts.stop - 1].stop)

    def held(self, block: range, index: int) -> slice:
        """What worker `index` of a block holds once the block is halved."""
        whole = range(len(self.cuts))
        steps = halvings(index, len(block), whole)
        return self.span(steps[-1].kept if steps else whole)

    @property
    def mine(self) -> slice:
        """What this worker holds once its block is halved."""
        return self.held(self.block, self.index)

    def with_larger(self) -> Transfers:
        """This worker's part, cut as the next larger block holds it."""
        matching = range(self.index, len(self.larger), len(self.block))
        return [(self.vector[self.held(self.larger, i)], self.larger[i]) for i in matching]

    def with_smaller(self, part: Tensor) -> Transfers:
        """This worker's part for, or from, the one of the next smaller block that holds it too."""
        return [(part, self.smaller[self.index % len(self.smaller)])]


def reduce_scatter(messages: Messages, vector: Tensor) -> slice:
    """Halve within the block; add what the smaller block sends; hand the sum to the larger one."""
    place = BlockPosition(messages, vector)
    steps = place.halvings
    inbox = vector.new_empty(numel(place.span(steps[0].kept) if steps else place.mine))  # nothing larger arrives
    for halving in steps:
        kept = vector[place.span(halving.kept)]
        arrived = inbox[: kept.numel()]
        place.within.step([(vector[place.span(halving.given)], halving.partner)], [(arrived, halving.partner)])
        kept += arrived
    if place.smaller:
        arrived = inbox[: numel(place.mine)]
        messages.step(receive=place.with_smaller(arrived))
        vector[place.mine] += arrived
    if place.larger:
        messages.step(send=place.with_larger())
        return slice(0, 0)
    return place.mine


def all_gather(messages: Messages, vector: Tensor) -> None:
    """Retrace the way back: from the larger block, to the smaller one, then doubling within the block."""
    place = BlockPosition(messages, vector)
    if place.larger:
        messages.step(receive=place.with_larger())
    if place.smaller:
        messages.step(send=place.with_smaller(vector[place.mine]))
    for halving in reversed(place.halvings):
        kept, given = vector[place.span(halving.kept)], vector[place.span(halving.given)]
        place.within.step([(kept, halving.partner)], [(given, halving.partner)])


def cost(p: int) -> AllReduceCost:
    """2 log2 p steps and 2 (p - 1)/p b bytes for a power of two. Otherwise, of the block that is worst off: 2 more
    steps and b/B bytes more for each neighbouring block, B being the size of its own."""
    found = blocks(p)
    costs = []
    for i, block in enumerate(found):
        size, neighbours = len(block), (i > 0) + (i + 1 < len(found))
        costs.append((2 * (size.bit_length() - 1) + 2 * neighbours, (2 * (size - 1) + neighbours) / size))
    return AllReduceCost(max(steps for steps, _ in costs), max(vectors for _, vectors in costs))


BINARY_BLOCKS = AllReduce("binary_blocks", reduce_scatter, all_gather, cost)
