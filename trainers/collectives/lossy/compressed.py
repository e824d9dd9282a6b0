"""A sum over the virtual workers, each of which sends a part of its vector and keeps the rest for the next one."""

from __future__ import annotations

import torch
from torch import Tensor

from trainers.collectives.average import gather_rows
from trainers.collectives.protocol import Collectives
from trainers.collectives.reduction_tree import block, depth, sum_leaves
from trainers.optim.buffers import State
from trainers.optim.compress.compressor import Compressor
from trainers.optim.compress.config import kept_names
from trainers.optim.compress.feedback import ErrorFeedback
from trainers.spans import span


class KeptRows:
    """What the virtual workers of this worker have kept, (P,) each; it belongs to the state of the run."""

    def __init__(self, collectives: Collectives, num_virtual: int, numel: int, start: State) -> None:
        """start: what was kept before, by `kept_names`; who is not in it has kept nothing."""
        self.collectives, self.num_virtual = collectives, num_virtual
        self.ranks = range(*block(num_virtual, collectives.rank, collectives.size))
        self.kept = torch.zeros(len(self.ranks), numel, device=collectives.device)
        for rank, row in zip(self.ranks, self.kept, strict=True):
            if (before := start.get(kept_names(num_virtual)[rank])) is not None:
                row.copy_(before)

    def gather(self) -> State:
        """On worker 0 the rows of all virtual workers, by `kept_names`; on the others nothing. Collective."""
        rows = gather_rows(self.collectives, self.num_virtual, self.kept)
        return dict(zip(kept_names(self.num_virtual), rows, strict=len(rows) > 0))


class CompressedSum:
    """Every worker sends its messages to every other, and adds up in the canonical order what all of them say. So the
    sum has the same bits on any number of workers, and nothing travels but messages.

    A worker sends (K - 1) messages of each of its virtual workers.
    """

    def __init__(
        self, collectives: Collectives, num_virtual: int, compressor: Compressor, gaps: Tensor, start: State
    ) -> None:
        """gaps: (P,) of bool, where no parameter lies. start: what the virtual workers have kept, by `kept_names`;
        those that are not in it have kept nothing."""
        self.collectives, self.num_virtual, self.compressor = collectives, num_virtual, compressor
        self.gaps = gaps.to(collectives.device)
        blocks = [block(num_virtual, k, collectives.size) for k in range(collectives.size)]
        self.counts = [hi - lo for lo, hi in blocks]
        self.rows = KeptRows(collectives, num_virtual, len(gaps), start)
        self.kept, self.ranks = self.rows.kept, self.rows.ranks
        self.feedback = [ErrorFeedback(compressor, row, self.gaps) for row in self.kept]
        self.buffers = [torch.zeros_like(self.kept[0]) for _ in range(depth((0, num_virtual)))]

    def of(self, vectors: Tensor) -> Tensor:
        """The sum of what is sent of the vectors of all virtual workers, (P,), valid until the next call.

        vectors: (virtual workers here, P); what is sent of them is left there.
        """
        everything = slice(0, len(self.gaps))
        messages = [memory.send(row, everything) for memory, row in zip(self.feedback, vectors, strict=True)]
        with span("sums"):
            received = self._exchanged(torch.cat(messages))

        def leaf(rank: int, into: Tensor) -> None:
            if rank in self.ranks:
                into.copy_(vectors[rank - self.ranks.start])
            else:
                self.compressor.decode(received[rank], into)
                into.masked_fill_(self.gaps, 0)

        sum_leaves((0, self.num_virtual), self.buffers, leaf)
        return self.buffers[0]

    def gather(self) -> State:
        """On worker 0 what each virtual worker has kept, (P,), by `kept_names`; on the others nothing. Collective."""
        return self.rows.gather()

    def _exchanged(self, own: Tensor) -> Tensor:
        """(V, length) of uint8: the messages of all virtual workers; own: those of this worker's, one after the
        other."""
        sent = own.view(torch.float32)  # as which transports carry whatever it is
        length = len(sent) // len(self.ranks)
        received = sent.new_empty(self.num_virtual, length)
        parts = list(torch.split(received.flatten(), [count * length for count in self.counts]))
        self.collectives.all_to_all([sent] * len(parts), parts).wait()
        return received.view(torch.uint8)
