"""Sums over the virtual workers of what each of them sends of a part of its vector, made beside the caller."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trainers.collectives.lossy.compressed import KeptRows
from trainers.collectives.messages import Lane, Messages
from trainers.collectives.protocol import Collectives
from trainers.collectives.reduction_tree import block, depth, sum_leaves
from trainers.links.handle import Handle
from trainers.optim.buffers import State
from trainers.optim.compress.compressor import Compressor
from trainers.optim.compress.feedback import ErrorFeedback


class CompressedSumBeside:
    """As `CompressedSum` makes them, with the same bits; each part of the vectors is compressed by itself. They follow
    each other on a lane, and all workers begin the same ones in the same order."""

    def __init__(
        self,
        collectives: Collectives,
        num_virtual: int,
        compressor: Compressor,
        gaps: Tensor,
        start: State,
        lane: Lane,
    ) -> None:
        """gaps: (P,) of bool, where no parameter lies. start: what the virtual workers have kept, by `kept_names`;
        those that are not in it have kept nothing."""
        self.num_virtual, self.compressor, self.lane = num_virtual, compressor, lane
        self.gaps = gaps.to(collectives.device)
        blocks = [block(num_virtual, k, collectives.size) for k in range(collectives.size)]
        self.counts = [hi - lo for lo, hi in blocks]
        self.rows = KeptRows(collectives, num_virtual, len(gaps), start)
        self.feedback = [ErrorFeedback(compressor, row, self.gaps) for row in self.rows.kept]

    def begin(self, vectors: Sequence[Tensor], part: slice) -> Handle[Tensor]:
        """The sum of what is sent of this part of the vectors of all virtual workers, (n,). What this worker sends is
        chosen, and what it keeps is kept, before the call returns; what `wait` gives is the caller's.

        Args:
            vectors: (P,) of each virtual worker here; what is sent of them is left there, for the sum.
            part: Of n elements.

        Raises:
            PeerLost: From `wait`: a worker is gone.
        """
        sent = torch.cat([memory.send(row, part) for memory, row in zip(self.feedback, vectors, strict=True)])
        own = sent.view(torch.float32)  # as which transports carry whatever it is
        received = own.new_empty(self.num_virtual, len(own) // len(vectors))
        buffers = [
            self.gaps.new_zeros(part.stop - part.start, dtype=torch.float32)
            for _ in range(depth((0, self.num_virtual)))
        ]
        theirs = {rank: row[part] for rank, row in zip(self.rows.ranks, vectors, strict=True)}

        def leaf(rank: int, into: Tensor) -> None:
            if rank in theirs:
                into.copy_(theirs[rank])
            else:
                self.compressor.decode(received[rank].view(torch.uint8), into)
                into.masked_fill_(self.gaps[part], 0)

        def exchange(messages: Messages) -> None:
            others = [k for k in range(messages.size) if k != messages.rank]
            cuts = torch.split(received.flatten(), [count * received.shape[1] for count in self.counts])
            messages.step([(own, k) for k in others], [(cuts[k], k) for k in others])
            sum_leaves((0, self.num_virtual), buffers, leaf)

        over = self.lane.begin(exchange)

        def finish() -> Tensor:
            over.wait()
            return buffers[0]

        return Handle(finish)

    def gather(self) -> State:
        """On worker 0 what each virtual worker has kept, (P,), by `kept_names`; on the others nothing. Collective."""
        return self.rows.gather()
