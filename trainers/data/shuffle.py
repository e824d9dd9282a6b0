"""ShuffleSGD: which virtual worker gets which example before a round, decided by those that hold them.

Source: paper 2, section 5.1.1, algorithm 2. Its bins, read as ranges of the sorted examples, would each hold a few
labels only; here a bin is striped over all of them, so that it is a representative subset. Nobody needs to know which
examples another one holds: what is decided follows from samples and counts that everyone gets.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from trainers.data.draws import Float32Array, Int64Array, uniform

STREAM = 2
"""The stream of draws that belongs to the shuffle."""

Gather = Callable[[Mapping[int, Int64Array], Sequence[int]], list[Int64Array]]
"""From what the virtual workers here say, by rank, to what all say, in the order of their ranks. It is also told how
many numbers each of all says."""


@dataclass(frozen=True, eq=False)
class Held:
    """The examples of one virtual worker, in ascending order of their ids."""

    ids: Int64Array  # (n,)
    labels: Int64Array  # (n,)


@dataclass(frozen=True)
class Shuffle:
    """How the examples are dealt anew before each round; a virtual worker always has as many as before.

    `full`: algorithm 2. `exchange`: two workers exchange half of what they hold, other two in the next round (the
    report's cheap option). `none`: they stay.
    """

    kind: Literal["none", "exchange", "full"]
    samples: int
    """d: labels that each virtual worker tells the others, to settle the cells."""
    seed: int
    shares: tuple[int, ...]
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
        """The ids that each virtual worker holds after the shuffles before so many rounds; `labels` (N,): of all."""

        found = [np.sort(ids) for ids in held]
        for epoch in range(rounds):
            parts = {rank: Held(ids, labels[ids]) for rank, ids in enumerate(found)}
            goes = self.destinations(epoch, parts, by_rank)
            ids, to = np.concatenate(found), np.concatenate([goes[rank] for rank in parts])
            found = [np.sort(ids[to == rank]) for rank in parts]
        return found

    def cuts(self, epoch: int, held: Mapping[int, Held], gather: Gather) -> Int64Array:
        """The label at which each cell begins: a V-th of the merged samples apart, so that cells are about equal."""
        sampled = {
            rank: np.sort(mine.labels[np.argsort(self._draws(epoch, mine)[0], kind="stable")[: self.samples]])
            for rank, mine in held.items()
        }
        merged = list(heapq.merge(*gather(sampled, [min(self.samples, share) for share in self.shares])))
        return np.unique(np.array(merged[:: len(self.shares)], dtype=np.int64))

    @cached_property
    def stripes(self) -> Int64Array:
        """(N,) the bin of each place: every worker's turns come evenly, its j-th of c at the time (j + 1/2) / c.

        At time t worker v has had t c_v turns, but for 1/2, and all together t N, but for V/2.
        """
        times = np.concatenate([(np.arange(share) + 0.5) / share for share in self.shares])
        owner = np.repeat(np.arange(len(self.shares)), self.shares)
        return owner[np.argsort(times, kind="stable")]

    def _striped(self, epoch: int, held: Mapping[int, Held], gather: Gather) -> dict[int, Int64Array]:
        cuts = self.cuts(epoch, held, gather)
        order = {rank: np.lexsort((self._draws(epoch, mine)[1], mine.labels)) for rank, mine in held.items()}
        cells = {rank: cells_of(mine.labels[order[rank]], cuts) for rank, mine in held.items()}
        said = {rank: np.bincount(cell, minlength=len(cuts)) for rank, cell in cells.items()}
        counts = np.stack(gather(said, [len(cuts)] * len(self.shares)))  # (V, cells)
        by_cell = counts.T.ravel()  # the cells one after the other, in each the workers by rank
        first = (np.cumsum(by_cell) - by_cell).reshape(len(cuts), -1)  # (cells, V) a worker's first place in a cell
        found = {}
        for rank, cell in cells.items():
            within = np.arange(len(cell)) - (np.cumsum(counts[rank]) - counts[rank])[cell]
            found[rank] = np.empty(len(cell), dtype=np.int64)
            found[rank][order[rank]] = self.stripes[first[cell, rank] + within]
        return found

    def _draws(self, epoch: int, mine: Held) -> Float32Array:
        """(2, n) in [0, 1): what chooses the samples, and the order of the examples of one label."""
        return uniform(self.seed, epoch, mine.ids, 2, STREAM).T

    def _exchanged(self, epoch: int, rank: int, mine: Held) -> Int64Array:
        """Half of them, drawn at random, go to the partner; of two that hold unequally many, half of the fewer."""
        other = partner(len(self.shares), epoch, rank)
        half = min(self.shares[rank], self.shares[other]) // 2
        found = np.full(len(mine.ids), rank)
        found[np.argsort(self._draws(epoch, mine)[0], kind="stable")[:half]] = other
        return found


def by_rank(said: Mapping[int, Int64Array], _: Sequence[int]) -> list[Int64Array]:
    """A `Gather` where all virtual workers are here."""
    return [said[rank] for rank in sorted(said)]


def partner(num_virtual: int, epoch: int, rank: int) -> int:
    """Who exchanges with whom: a tournament in which everyone meets everyone; of an odd number one rests, its own
    partner. The last player stands, the others move around a circle."""
    players = num_virtual + num_virtual % 2
    circle = players - 1
    if rank == players - 1:
        other = next(r for r in range(circle) if (2 * r - epoch) % circle == 0)
    else:
        other = (epoch - rank) % circle
        other = players - 1 if other == rank else other
    return rank if other >= num_virtual else other


def first_partitions(
    start: Literal["sorted", "dealt"], dealt: Sequence[Int64Array], labels: Int64Array
) -> list[Int64Array]:
    """The ids that each virtual worker holds before the first round.

    Args:
        start: `dealt`: as the first epoch deals them; `sorted`: sorted by label and cut into as many for each.
        dealt: The ids that the first epoch deals to each virtual worker.
        labels: (N,) by id.
    """
    if start == "dealt":
        return list(dealt)
    return np.split(np.argsort(labels, kind="stable"), np.cumsum([len(ids) for ids in dealt])[:-1])


def cells_of(labels: Int64Array, cuts: Int64Array) -> Int64Array:
    """(n,) the cell of each label; labels below the first cut, which no sample had, are in the first."""
    return np.maximum(np.searchsorted(cuts, labels, side="right") - 1, 0)
