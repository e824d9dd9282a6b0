"""Batch-norm buffers of all virtual ranks, kept so that whoever goes on after a death finds them.

A virtual rank's buffers depend on all minibatches that it has seen, so they must outlive the worker that computes it,
and a step that is abandoned must leave no trace in them. Three versions are kept: a worker may be one step ahead of
the others, and writes the one after that.
"""

from pathlib import Path

import torch
from torch import Tensor

from trainers.collectives.protocol import Collectives
from trainers.collectives.reduction_tree import block
from trainers.links.mapped import MappedFile
from trainers.models.replica import Replica

VERSIONS = 3


def fitted(rows: Tensor, num_virtual: int) -> Tensor:
    """(V, width) for another V: the first ranks keep theirs, new ones begin with the mean of all."""
    mean = rows.mean(0, keepdim=True)
    return torch.cat([rows[:num_virtual], mean.expand(max(0, num_virtual - len(rows)), -1)])


class BatchNormState:
    """The rows (V, width) of the versions around the one that is trained; a row is one virtual rank's buffers, flat."""

    def __init__(self, replica: Replica, num_virtual: int, ranks: range) -> None:
        """ranks: Whose minibatches this worker computes."""
        self.replica = replica
        self.num_virtual = num_virtual
        self.ranks = ranks
        self.shapes = {name: buffer.shape for name, buffer in replica.initial_buffers.items()}
        self.width = sum(shape.numel() for shape in self.shapes.values())
        self.rows = torch.zeros(VERSIONS, num_virtual, 0)  # (VERSIONS, V, width) once opened
        self.collectives: Collectives | None = None

    def open(self, file: Path | None, collectives: Collectives | None) -> None:
        """Keep the rows in a mapped file that all workers of the node share; without one in this process, and exchange
        them after each step through `collectives`, where there are any. Workers with a GPU that have collectives keep
        them there, and need no file."""
        device = self.replica.device
        if file is not None and (device.type == "cpu" or collectives is None):
            self.rows = MappedFile(file, VERSIONS * self.num_virtual, self.width).rows.view(*self._shape)
        else:
            self.rows, self.collectives = torch.zeros(self._shape, device=device), collectives

    def begin(self, clock: int) -> None:
        """Write what the replica has of this worker's ranks as the version `clock`."""
        if self.width:
            for rank in self.ranks:
                buffers = self.replica.float_buffers(rank).values()
                self.rows[clock % VERSIONS, rank] = torch.cat([buffer.flatten() for buffer in buffers])
            self._exchange(clock)

    def take(self, clock: int, rows: Tensor) -> None:
        """The version `clock`, (V, width), as somebody else has it."""
        self.rows[clock % VERSIONS] = rows

    def turn(self, clock: int) -> None:
        """Let the replica's buffers be those of the version after `clock`, which begin as that has them."""
        before, after = self.rows[clock % VERSIONS], self.rows[(clock + 1) % VERSIONS]
        for rank in self.ranks if self.width else ():
            after[rank] = before[rank]
            self.replica.buffers[rank] = self._named(after[rank].to(self.replica.device))  # a view, where it is there

    def complete(self, clock: int) -> None:
        """The step that makes the version `clock` is over."""
        if self.width:
            if self.replica.device != self.rows.device:
                self.begin(clock)
            else:
                self._exchange(clock)

    def version(self, clock: int) -> Tensor:
        """(V, width), on the CPU, of a version that all have made."""
        return self.rows[clock % VERSIONS].cpu()

    def named(self, clock: int) -> dict[int, dict[str, Tensor]]:
        """Likewise, by virtual rank and name."""
        rows = self.version(clock).clone()
        return {rank: self._named(rows[rank]) for rank in range(self.num_virtual)} if self.width else {}

    @property
    def _shape(self) -> tuple[int, int, int]:
        return VERSIONS, self.num_virtual, self.width

    def _named(self, row: Tensor) -> dict[str, Tensor]:
        cuts = torch.split(row, [shape.numel() for shape in self.shapes.values()])
        return {name: cut.view(self.shapes[name]) for name, cut in zip(self.shapes, cuts, strict=True)}

    def _exchange(self, clock: int) -> None:
        if self.collectives is None or self.collectives.size == 1:
            return
        size, rows = self.collectives.size, self.rows[clock % VERSIONS]
        blocks = [slice(*block(self.num_virtual, k, size)) for k in range(size)]
        mine = rows[blocks[self.collectives.rank]].flatten()
        receive = [mine.new_empty((cut.stop - cut.start) * self.width) for cut in blocks]
        self.collectives.all_to_all([mine] * size, receive).wait()
        for cut, values in zip(blocks, receive, strict=True):
            rows[cut] = values.view(-1, self.width)
