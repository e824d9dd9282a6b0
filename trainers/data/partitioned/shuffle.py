"""ShuffleSGD: which virtual worker gets which example before a round; each decides for the examples that it holds.

Source: paper 2, section 5.1.1, algorithm 2. If its bins were ranges of the sorted examples, each would hold only a few
labels; here a bin is striped over all examples, so that it is a representative subset. No worker needs to know which
examples another one holds: the decisions follow from samples and counts that all workers gather.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from trainers.data.draws import Float32Array, Int64Array, uniform

STREAM = 2
"""The stream of random draws that belongs to the shuffle."""

Gather = Callable[[Mapping[int, Int64Array], Sequence[int]], list[Int64Array]]
"""Gathers numbers of all virtual workers, in the order of their ranks, from those of the virtual workers of this
process, by rank. The second argument is how many numbers each virtual worker contributes."""


@dataclass(frozen=True, eq=False)
class Held:
    """The examples of one virtual worker, in ascending order of their ids."""

    ids: Int64Array  # (n,)
    labels: Int64Array  # (n,)


@dataclass(frozen=True)
class Shuffle:
    """How examples are redistributed before each round. A virtual worker always holds equally many.

    `full`: algorithm 2. `exchange`: pairs of workers exchange half of their examples, with other pairs in the next
    round (the report's cheap option). `none`: the examples stay where they are.
    """

    kind: Literal["none", "exchange", "full"]
    samples: int
    """d: labels that each virtual worker sends to the others as samples, from which the cells are derived."""
    seed: int
    partition_sizes: tuple[int, ...]
    """Examples that each virtual worker holds."""

    def destinations(self, epoch: int, held: Mapping[int, Held], gather: Gather) -> dict[int, Int64Array]:
        """The virtual worker that trains each example in `epoch`, (n,) for each virtual worker of `held`."""
        match self.kind:
            case "full":
                return self._striped(epoch, held, gather)
            case "exchange":
                return {rank: self._exchanged(epoch, rank, mine) for rank, mine in held.items()}
        return {rank: np.full(len(mine.ids), rank) for rank, mine in held.items()}

    def replayed(self, held: Sequence[Int64Array], labels: Int64Array, rounds: int) -> list[Int64Array]:
        """The ids that each virtual worker holds after the shuffles before that many rounds.

        labels: (N,) of all examples, by id.
        """
        found = [np.sort(ids) for ids in held]
        for epoch in range(rounds):
            parts = {rank: Held(ids, labels[ids]) for rank, ids in enumerate(found)}
            goes = self.destinations(epoch, parts, by_rank)
            ids, to = np.concatenate(found), np.concatenate([goes[rank] for rank in parts])
            found = [np.sort(ids[to == rank]) for rank in parts]
        return found

    def cuts(self, epoch: int, held: Mapping[int, Held], gather: Gather) -> Int64Array:
        """The label at which each cell begins: quantiles of the samples, so that cells are about equally large."""
        sampled = {
            rank: np.sort(mine.labels[np.argsort(self._draws(epoch, mine)[0], kind="stable")[: self.samples]])
            for rank, mine in held.items()
        }
        merged = list(heapq.merge(*gather(sampled, [min(self.samples, size) for size in self.partition_sizes])))
        return np.unique(np.array(merged[:: len(self.partition_sizes)], dtype=np.int64))

    @cached_property
    def stripes(self) -> Int64Array:
        """(N,) the virtual worker that gets each position in the sorted order of all examples.

        The positions of a worker with c examples are spread evenly: its j-th is at time (j + 1/2) / c. Up to time t
        worker v has t c_v positions, to within 1/2, and all workers together have t N, to within V/2.
        """
        times = np.concatenate([(np.arange(size) + 0.5) / size for size in self.partition_sizes])
        owner = np.repeat(np.arange(len(self.partition_sizes)), self.partition_sizes)
        return owner[np.argsort(times, kind="stable")]

    def _striped(self, epoch: int, held: Mapping[int, Held], gather: Gather) -> dict[int, Int64Array]:
        cuts = self.cuts(epoch, held, gather)
        order = {rank: np.lexsort((self._draws(epoch, mine)[1], mine.labels)) for rank, mine in held.items()}
        cells = {rank: cells_of(mine.labels[order[rank]], cuts) for rank, mine in held.items()}
        own_counts = {rank: np.bincount(cell, minlength=len(cuts)) for rank, cell in cells.items()}
        counts = np.stack(gather(own_counts, [len(cuts)] * len(self.partition_sizes)))  # (V, cells)
        by_cell = counts.T.ravel()  # cell after cell, and within a cell by rank
        first = (np.cumsum(by_cell) - by_cell).reshape(len(cuts), -1)  # (cells, V) a worker's first position in a cell
        found = {}
        for rank, cell in cells.items():
            within = np.arange(len(cell)) - (np.cumsum(counts[rank]) - counts[rank])[cell]
            found[rank] = np.empty(len(cell), dtype=np.int64)
            found[rank][order[rank]] = self.stripes[first[cell, rank] + within]
        return found

    def _draws(self, epoch: int, mine: Held) -> Float32Array:
        """(2, n) in [0, 1): row 0 chooses the samples, row 1 orders the examples of one label."""
        return uniform(self.seed, epoch, mine.ids, 2, STREAM).T

    def _exchanged(self, epoch: int, rank: int, mine: Held) -> Int64Array:
        """Half of the examples, drawn at random, go to the partner; if it holds fewer, half of its number."""
        other = partner(len(self.partition_sizes), epoch, rank)
        half = min(self.partition_sizes[rank], self.partition_sizes[other]) // 2
        found = np.full(len(mine.ids), rank)
        found[np.argsort(self._draws(epoch, mine)[0], kind="stable")[:half]] = other
        return found


def by_rank(numbers: Mapping[int, Int64Array], _: Sequence[int]) -> list[Int64Array]:
    """A `Gather` where all virtual workers are in this process."""
    return [numbers[rank] for rank in sorted(numbers)]


def partner(num_virtual: int, epoch: int, rank: int) -> int:
    """The virtual worker with which `rank` exchanges examples: a round-robin tournament by the circle method.

    Over the epochs everyone meets everyone. If the number is odd, one rests in each epoch and is its own partner.
    """
    players = num_virtual + num_virtual % 2
    circle = players - 1
    if rank == players - 1:
        other = next(r for r in range(circle) if (2 * r - epoch) % circle == 0)
    else:
        other = (epoch - rank) % circle
        other = players - 1 if other == rank else other
    return rank if other >= num_virtual else other


def first_partitions(
    start: Literal["sorted", "dealt"], initial: Sequence[Int64Array], labels: Int64Array
) -> list[Int64Array]:
    """The ids that each virtual worker holds before the first round.

    Args:
        start: `dealt`: as in the first epoch's permutation; `sorted`: sorted by label and cut into parts of the same
            sizes.
        initial: The ids of each virtual worker in the first epoch's permutation.
        labels: (N,) by id.
    """
    if start == "dealt":
        return list(initial)
    return np.split(np.argsort(labels, kind="stable"), np.cumsum([len(ids) for ids in initial])[:-1])


def cells_of(labels: Int64Array, cuts: Int64Array) -> Int64Array:
    """(n,) the cell of each label; labels below the first cut, which occur in no sample, are in the first cell."""
    return np.maximum(np.searchsorted(cuts, labels, side="right") - 1, 0)
