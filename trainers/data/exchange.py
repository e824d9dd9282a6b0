"""How the workers of a set that nobody holds whole tell each other numbers and move examples.

Everything travels through `Collectives.all_to_all` as float32 that nobody computes with: bytes of rows, halves of
int64.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trainers.data.draws import Int64Array
from trainers.data.rows import FREE, Rows
from trainers.transport.canonical import block
from trainers.transport.protocols import Collectives

CHUNK_BYTES = 16 * 1024**2
"""What a worker sends at a time: a move needs this much memory a few times over, beside the rows themselves."""


@dataclass(frozen=True, eq=False)
class Exchange:
    """One worker's way to the others."""

    collectives: Collectives
    num_virtual: int
    device: torch.device
    chunk_bytes: int = CHUNK_BYTES

    @property
    def blocks(self) -> list[range]:
        """The virtual ranks of each worker."""
        size = self.collectives.size
        return [range(*block(self.num_virtual, k, size)) for k in range(size)]

    def gather(self, said: Mapping[int, Int64Array], lengths: Sequence[int]) -> list[Int64Array]:
        """A `Gather` between workers."""
        sizes = [sum(lengths[rank] for rank in ranks) for ranks in self.blocks]
        mine = np.concatenate([said[rank] for rank in self.blocks[self.collectives.rank]]).astype(np.int64)
        told = np.concatenate(self._all_gather(mine, sizes))
        return np.split(told, np.cumsum(lengths)[:-1])

    def bring_home(self, rows: Rows) -> None:
        """Send every row to the worker that computes its virtual worker, and take in what comes, in place.

        A pair of workers sends the same fraction of what it has to send in each of C chunks. As every worker gets as
        many rows as it gives, it is never more than a row for each other worker short of free ones.
        """
        me, size = self.collectives.rank, self.collectives.size
        home = np.repeat(np.arange(size), [len(ranks) for ranks in self.blocks])  # (V,) worker of a virtual rank
        goes = home[rows.rows["rank"][rows.slots]]
        leaving = [rows.slots[goes == k] if k != me else rows.slots[:0] for k in range(size)]
        counts = np.stack(self._all_gather(np.array([len(slots) for slots in leaving]), [size] * size))  # (from, to)
        row_bytes = rows.rows.itemsize
        num_chunks = -(-int(counts.sum(1).max()) * row_bytes // self.chunk_bytes)
        free = np.flatnonzero(rows.rows["rank"] == FREE)
        for chunk in range(num_chunks):
            cuts = [slots[_nth(len(slots), chunk, num_chunks)] for slots in leaving]
            came = self._swap(rows.rows, cuts, [_length(_nth(int(n), chunk, num_chunks)) for n in counts[:, me]])
            left = np.concatenate(cuts)
            rows.rows["rank"][left] = FREE
            free = np.concatenate([free, left])
            rows.rows[free[: len(came)]] = came
            free = free[len(came) :]
        self.collectives.traffic.shuffled_bytes += row_bytes * int(counts[me].sum())

    def _swap(self, rows: NDArray[Any], cuts: Sequence[Int64Array], expected: Sequence[int]) -> NDArray[Any]:
        """Send the rows in the slots `cuts[k]` to worker k; what the others sent."""
        width = rows.itemsize // 4
        send = [torch.from_numpy(rows[slots].view(np.float32)).to(self.device) for slots in cuts]
        receive = [torch.empty(int(count) * width, device=self.device) for count in expected]
        self.collectives.all_to_all(send, receive).wait()
        return np.concatenate([came.cpu().numpy().view(rows.dtype) for came in receive])

    def _all_gather(self, mine: Int64Array, sizes: Sequence[int]) -> list[Int64Array]:
        """What every worker says, so many numbers each."""
        send = torch.from_numpy(mine.view(np.float32)).to(self.device)
        receive = [torch.empty(2 * count, device=self.device) for count in sizes]
        self.collectives.all_to_all([send] * self.collectives.size, receive).wait()
        return [said.cpu().numpy().view(np.int64) for said in receive]


def _nth(count: int, chunk: int, num_chunks: int) -> slice:
    """The part of `count` things that belongs to a chunk."""
    return slice(count * chunk // num_chunks, count * (chunk + 1) // num_chunks)


def _length(cut: slice) -> int:
    return int(cut.stop - cut.start)
