"""How workers that each hold a part of the training set exchange numbers and move examples.

Everything goes through `Collectives.all_to_all`, which carries float32: the bytes of rows and of int64 are only
reinterpreted and never computed with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trainers.collectives.protocol import Collectives
from trainers.collectives.reduction_tree import block
from trainers.data.draws import Int64Array
from trainers.data.partitioned.rows import FREE, Rows

CHUNK_BYTES = 16 * 1024**2
"""Bytes that a worker sends at a time. A move needs a few times this much memory beside the rows themselves."""


@dataclass(frozen=True, eq=False)
class PairwiseExchange:
    """One worker's end of the exchange."""

    collectives: Collectives
    num_virtual: int
    device: torch.device
    chunk_bytes: int = CHUNK_BYTES

    @property
    def blocks(self) -> list[range]:
        """The virtual ranks of each worker."""
        size = self.collectives.size
        return [range(*block(self.num_virtual, k, size)) for k in range(size)]

    def gather(self, numbers: Mapping[int, Int64Array], lengths: Sequence[int]) -> list[Int64Array]:
        """A `Gather` among workers."""
        sizes = [sum(lengths[rank] for rank in ranks) for ranks in self.blocks]
        mine = np.concatenate([numbers[rank] for rank in self.blocks[self.collectives.rank]]).astype(np.int64)
        gathered = np.concatenate(self._all_gather(mine, sizes))
        return np.split(gathered, np.cumsum(lengths)[:-1])

    def deliver(self, rows: Rows) -> None:
        """Send every row to the worker that computes its virtual worker, and store the rows that arrive, in place.

        The rows are sent in C chunks; in each of them every worker sends the same fraction of its rows to each of the
        others. Every worker receives as many rows as it sends, so it never needs more spare rows than there are other
        workers.
        """
        me, size = self.collectives.rank, self.collectives.size
        owner = np.repeat(np.arange(size), [len(ranks) for ranks in self.blocks])  # (V,) worker of a virtual rank
        to = owner[rows.rows["rank"][rows.slots]]
        leaving = [rows.slots[to == k] if k != me else rows.slots[:0] for k in range(size)]
        counts = np.stack(self._all_gather(np.array([len(slots) for slots in leaving]), [size] * size))  # (from, to)
        row_bytes = rows.rows.itemsize
        num_chunks = -(-int(counts.sum(1).max()) * row_bytes // self.chunk_bytes)
        free = np.flatnonzero(rows.rows["rank"] == FREE)
        for chunk in range(num_chunks):
            cuts = [slots[_nth(len(slots), chunk, num_chunks)] for slots in leaving]
            arrived = self._swap(rows.rows, cuts, [_length(_nth(int(n), chunk, num_chunks)) for n in counts[:, me]])
            left = np.concatenate(cuts)
            rows.rows["rank"][left] = FREE
            free = np.concatenate([free, left])
            rows.rows[free[: len(arrived)]] = arrived
            free = free[len(arrived) :]
        self.collectives.meter.count_shuffled(row_bytes * int(counts[me].sum()))

    def _swap(self, rows: NDArray[Any], cuts: Sequence[Int64Array], expected: Sequence[int]) -> NDArray[Any]:
        """Send the rows in the slots `cuts[k]` to each worker k; returns the rows that the others sent."""
        width = rows.itemsize // 4
        send = [torch.from_numpy(rows[slots].view(np.float32)).to(self.device) for slots in cuts]
        receive = [torch.empty(int(count) * width, device=self.device) for count in expected]
        self.collectives.all_to_all(send, receive).wait()
        return np.concatenate([part.cpu().numpy().view(rows.dtype) for part in receive])

    def _all_gather(self, mine: Int64Array, sizes: Sequence[int]) -> list[Int64Array]:
        """The numbers of every worker, `sizes[k]` of worker k."""
        send = torch.from_numpy(mine.view(np.float32)).to(self.device)
        receive = [torch.empty(2 * count, device=self.device) for count in sizes]
        self.collectives.all_to_all([send] * self.collectives.size, receive).wait()
        return [part.cpu().numpy().view(np.int64) for part in receive]


def _nth(count: int, chunk: int, num_chunks: int) -> slice:
    """The part of `count` items that belongs to a chunk."""
    return slice(count * chunk // num_chunks, count * (chunk + 1) // num_chunks)


def _length(cut: slice) -> int:
    return int(cut.stop - cut.start)
