"""How examples take turns in the fully connected layers, and how their activities travel (paper 1, section 4)."""

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainers.algorithms.base import Work
from trainers.head import Passing
from trainers.transport.canonical import block
from trainers.transport.protocols import Collectives, Handle

Scheme = Literal["a", "b", "c", "bc"]


@dataclass(frozen=True)
class Piece:
    """Examples [first, stop) of one virtual worker's minibatch."""

    rank: int
    first: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.first


Turn = tuple[Piece, ...]
"""Who takes part in a turn with which examples, in the order of the virtual ranks."""


def take_turns(scheme: Scheme, group: int, sizes: Sequence[int]) -> list[Turn]:
    """The turns of a step whose virtual workers have so many examples; none is empty.

    (a) is one turn of all. In (b) every virtual worker has a turn of its own, in (c) it gives an equal part to each of
    as many turns. The mix of (b) and (c) has the virtual workers in groups of `group`: groups take turns as in (b),
    the members of a group share theirs as in (c).
    """
    ranks = range(len(sizes))
    if scheme == "a":
        return [tuple(Piece(rank, 0, sizes[rank]) for rank in ranks)]
    together = {"b": 1, "c": len(sizes), "bc": group}[scheme]
    turns = [
        tuple(Piece(rank, *block(sizes[rank], i, len(members))) for rank in members)
        for members in (ranks[first : first + together] for first in range(0, len(sizes), together))
        for i in range(len(members))
    ]
    return [turn for turn in turns if any(piece.size for piece in turn)]


LabelsAndIds = tuple[Tensor, NDArray[np.int64]]
"""Of the examples of a step, (kn,) int64 each."""

Returned = list[tuple[int, Tensor]]
"""Virtual rank and gradient of the activities, (piece, width), of this worker's pieces of a turn."""


class Exchange:
    """What the workers tell each other in one step, about examples that all of them take through the same layers."""

    def __init__(self, collectives: Collectives, work: Work, width: int, device: torch.device) -> None:
        """width: activities of an example."""
        self.collectives, self.work, self.width, self.device = collectives, work, width, device
        self.blocks = [range(*block(len(work.sizes), k, collectives.size)) for k in range(collectives.size)]
        self.starts = list(itertools.accumulate(work.sizes, initial=0))  # of each virtual worker's examples in the step

    def tell(self) -> Handle[LabelsAndIds]:
        """Labels and ids of all examples of the step, (kn,) int64 each, in the order of the virtual ranks."""
        mine = torch.empty(0, 2, dtype=torch.int64, device=self.device)
        if batches := [minibatch.batch for minibatch in self.work.minibatches if minibatch.batch is not None]:
            labels = torch.cat([batch.labels for batch in batches])
            ids = torch.cat([torch.from_numpy(batch.examples) for batch in batches])
            mine = torch.stack([labels.to(self.device), ids.to(self.device)], 1)
        every = torch.empty(self.starts[-1], 2, dtype=torch.int64, device=self.device)
        received = [every[self.starts[ranks.start] : self.starts[ranks.stop]] for ranks in self.blocks]
        exchange = self.collectives.all_to_all([_bits(mine)] * len(received), [_bits(rows) for rows in received])

        def told() -> LabelsAndIds:
            exchange.wait()
            return every[:, 0], every[:, 1].cpu().numpy()

        return Handle(told)

    def passing(self, turn: Turn, activities: Tensor, told: LabelsAndIds) -> Passing:
        """A turn with its gathered activities, (B, width), and what `tell` said."""
        labels, examples = told
        rows = np.concatenate([np.arange(p.first, p.stop) + self.starts[p.rank] for p in turn])
        on_device = torch.from_numpy(rows).to(self.device)
        own = self._cuts(turn)[self.collectives.rank]
        return Passing(activities, labels[on_device], examples[rows], self.work.epoch, own)

    def gather(self, turn: Turn, activities: dict[int, Tensor]) -> Handle[Tensor]:
        """The activities of a turn, (B, width), from those of this worker's virtual workers, (n, width) each."""
        cuts = self._cuts(turn)
        mine = self._empty(0)
        if pieces := [activities[p.rank][p.first : p.stop] for p in self._mine(turn)]:
            mine = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        gathered = self._empty(cuts[-1].stop)
        exchange = self.collectives.all_to_all([mine] * len(cuts), [gathered[cut] for cut in cuts])

        def whole() -> Tensor:
            exchange.wait()
            return gathered

        return Handle(whole)

    def give_back(self, turn: Turn, gradient: Tensor) -> Handle[Returned]:
        """Sum every worker's part of the gradient of a turn's activities, (B, width), where each example is at home."""
        cuts, pieces = self._cuts(turn), self._mine(turn)
        received = [self._empty(sum(piece.size for piece in pieces)) for _ in cuts]
        exchange = self.collectives.all_to_all([gradient[cut] for cut in cuts], received)

        def summed() -> Returned:
            exchange.wait()
            total = received[0]
            for part in received[1:]:
                total.add_(part)
            ends = itertools.accumulate((piece.size for piece in pieces), initial=0)
            cuts = itertools.pairwise(ends)
            return [(piece.rank, total[a:b]) for piece, (a, b) in zip(pieces, cuts, strict=True)]

        return Handle(summed)

    def at_home(self, turns: Sequence[Handle[Returned]]) -> dict[int, Tensor]:
        """The gradients of the own activities, (n, width) by virtual rank, from what all turns gave back."""
        found: dict[int, list[Tensor]] = defaultdict(list)
        for turn in turns:
            for rank, gradient in turn.wait():
                found[rank].append(gradient)
        return {rank: pieces[0] if len(pieces) == 1 else torch.cat(pieces) for rank, pieces in found.items()}

    def _mine(self, turn: Turn) -> list[Piece]:
        return [piece for piece in turn if piece.size and piece.rank in self.blocks[self.collectives.rank]]

    def _cuts(self, turn: Turn) -> list[slice]:
        """The rows of a turn by worker."""
        sizes = [sum(piece.size for piece in turn if piece.rank in ranks) for ranks in self.blocks]
        ends = itertools.accumulate(sizes, initial=0)
        return [slice(first, stop) for first, stop in itertools.pairwise(ends)]

    def _empty(self, rows: int) -> Tensor:
        return torch.empty(rows, self.width, device=self.device)


def _bits(numbers: Tensor) -> Tensor:
    """The same bytes, as the float32 that transports carry: (n, 2) int64 as (n, 4)."""
    return numbers.view(torch.float32)
