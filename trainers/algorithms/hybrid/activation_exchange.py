"""The order in which examples pass the fully connected layers, and how their activities travel (paper 1, section 4)."""

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
from trainers.algorithms.hybrid.model_parallel import TurnInput
from trainers.collectives.protocol import Collectives
from trainers.collectives.reduction_tree import block
from trainers.links.handle import Handle

Scheme = Literal["a", "b", "c", "bc"]


@dataclass(frozen=True)
class MinibatchPart:
    """Examples [first, stop) of one virtual worker's minibatch."""

    rank: int
    first: int
    stop: int

    @property
    def size(self) -> int:
        """Number of examples."""
        return self.stop - self.first


Turn = tuple[MinibatchPart, ...]
"""The examples that pass the fully connected layers together, in the order of their virtual ranks."""

LabelsAndIds = tuple[Tensor, NDArray[np.int64]]
"""Labels and ids of all examples of a step, (kn,) int64 each."""

PartGradients = list[tuple[int, Tensor]]
"""For each part of a turn that belongs to this worker: its virtual rank, and the gradient of its activities, (examples
of the part, width)."""


def plan_turns(scheme: Scheme, group: int, sizes: Sequence[int]) -> list[Turn]:
    """Divide the examples of a step into turns, none of them empty.

    Scheme (a) is one turn of all examples. In (b) every virtual worker has a turn of its own. In (c) there are as many
    turns as virtual workers, and each virtual worker contributes an equal part of its examples to every turn. The mix
    of (b) and (c) divides the virtual workers into groups: the groups take turns as in (b), and within a group the
    turns are shared as in (c).

    Args:
        scheme: as the spec has it; `bc` is the mix.
        group: virtual workers of a group in scheme `bc`.
        sizes: examples of each virtual worker.
    """
    ranks = range(len(sizes))
    if scheme == "a":
        return [tuple(MinibatchPart(rank, 0, sizes[rank]) for rank in ranks)]
    group_size = {"b": 1, "c": len(sizes), "bc": group}[scheme]
    turns = [
        tuple(MinibatchPart(rank, *block(sizes[rank], i, len(members))) for rank in members)
        for members in (ranks[first : first + group_size] for first in range(0, len(sizes), group_size))
        for i in range(len(members))
    ]
    return [turn for turn in turns if any(part.size for part in turn)]


class ActivationExchange:
    """The messages of one step about examples that all workers take through the fully connected layers."""

    def __init__(self, collectives: Collectives, work: Work, width: int, device: torch.device) -> None:
        """width: activities of one example."""
        self.collectives, self.work, self.width, self.device = collectives, work, width, device
        self.blocks = [range(*block(len(work.sizes), k, collectives.size)) for k in range(collectives.size)]
        self.starts = list(itertools.accumulate(work.sizes, initial=0))  # of each virtual worker's examples in the step

    def gather_labels(self) -> Handle[LabelsAndIds]:
        """Labels and ids of all examples of the step, in the order of the virtual ranks."""
        mine = torch.empty(0, 2, dtype=torch.int64, device=self.device)
        if batches := [minibatch.batch for minibatch in self.work.minibatches if minibatch.batch is not None]:
            labels = torch.cat([batch.labels for batch in batches])
            ids = torch.cat([torch.from_numpy(batch.examples) for batch in batches])
            mine = torch.stack([labels.to(self.device), ids.to(self.device)], 1)
        gathered = torch.empty(self.starts[-1], 2, dtype=torch.int64, device=self.device)
        received = [gathered[self.starts[ranks.start] : self.starts[ranks.stop]] for ranks in self.blocks]
        exchange = self.collectives.all_to_all([_as_float32(mine)] * len(received), [_as_float32(r) for r in received])

        def labels_and_ids() -> LabelsAndIds:
            exchange.wait()
            return gathered[:, 0], gathered[:, 1].cpu().numpy()

        return Handle(labels_and_ids)

    def turn_input(self, turn: Turn, activities: Tensor, labels_and_ids: LabelsAndIds) -> TurnInput:
        """The input of the fully connected layers in a turn, from its gathered activities, (B, width)."""
        labels, ids = labels_and_ids
        rows = np.concatenate([np.arange(part.first, part.stop) + self.starts[part.rank] for part in turn])
        on_device = torch.from_numpy(rows).to(self.device)
        own = self._rows_by_worker(turn)[self.collectives.rank]
        return TurnInput(activities, labels[on_device], ids[rows], self.work.epoch, own)

    def gather_activities(self, turn: Turn, activities: dict[int, Tensor]) -> Handle[Tensor]:
        """The activities of a turn, (B, width), from those of this worker's virtual workers, (n, width) each."""
        rows = self._rows_by_worker(turn)
        mine = self._empty(0)
        if parts := [activities[part.rank][part.first : part.stop] for part in self._own_parts(turn)]:
            mine = parts[0] if len(parts) == 1 else torch.cat(parts)
        gathered = self._empty(rows[-1].stop)
        exchange = self.collectives.all_to_all([mine] * len(rows), [gathered[span] for span in rows])

        def complete() -> Tensor:
            exchange.wait()
            return gathered

        return Handle(complete)

    def reduce_gradients(self, turn: Turn, gradient: Tensor) -> Handle[PartGradients]:
        """Sum the workers' contributions to the gradient of a turn's activities, (B, width), each example's at the
        worker that it belongs to."""
        rows, parts = self._rows_by_worker(turn), self._own_parts(turn)
        received = [self._empty(sum(part.size for part in parts)) for _ in rows]
        exchange = self.collectives.all_to_all([gradient[span] for span in rows], received)

        def summed() -> PartGradients:
            exchange.wait()
            total = received[0]
            for contribution in received[1:]:
                total.add_(contribution)
            ends = itertools.accumulate((part.size for part in parts), initial=0)
            return [(part.rank, total[a:b]) for part, (a, b) in zip(parts, itertools.pairwise(ends), strict=True)]

        return Handle(summed)

    def gradients_by_rank(self, turns: Sequence[Handle[PartGradients]]) -> dict[int, Tensor]:
        """The gradients of this worker's own activities over all turns: virtual rank -> (n, width)."""
        found: dict[int, list[Tensor]] = defaultdict(list)
        for turn in turns:
            for rank, gradient in turn.wait():
                found[rank].append(gradient)
        return {rank: parts[0] if len(parts) == 1 else torch.cat(parts) for rank, parts in found.items()}

    def _own_parts(self, turn: Turn) -> list[MinibatchPart]:
        return [part for part in turn if part.size and part.rank in self.blocks[self.collectives.rank]]

    def _rows_by_worker(self, turn: Turn) -> list[slice]:
        """The rows of a turn that belong to each worker."""
        sizes = [sum(part.size for part in turn if part.rank in ranks) for ranks in self.blocks]
        ends = itertools.accumulate(sizes, initial=0)
        return [slice(first, stop) for first, stop in itertools.pairwise(ends)]

    def _empty(self, rows: int) -> Tensor:
        return torch.empty(rows, self.width, device=self.device)


def _as_float32(numbers: Tensor) -> Tensor:
    """The same bytes as float32, which transports carry: (n, 2) int64 as (n, 4)."""
    return numbers.view(torch.float32)
