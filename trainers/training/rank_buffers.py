"""The buffers of all virtual ranks, kept so that whoever goes on after a death finds them.

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
from trainers.models.module_buffers import Named
from trainers.models.replica import Replica

VERSIONS = 3


class RankBuffers:
    """The rows (V, width) of the versions around the one that is trained; a row is one virtual rank's buffers, flat."""

    def __init__(self, replica: Replica, num_virtual: int, ranks: range) -> None:
        """ranks: Whose minibatches this worker computes."""
        self.replica = replica
        self.num_virtual = num_virtual
        self.ranks = ranks
        self.layout = replica.module_buffers
        self.width = self.layout.width
        self.rows = torch.zeros(VERSIONS, num_virtual, 0)  # (VERSIONS, V, width) once opened
        self.views: dict[int, Named] = {}  # of the version that is trained, by this worker's virtual ranks
        self.rows_views: dict[tuple[int, int], Named] = {}  # of the rows, by version and virtual rank
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
        self.rows_views.clear()

    def begin(self, clock: int) -> None:
        """Write what the replica has of this worker's ranks as the version `clock`."""
        if self.width:
            for rank in self.ranks:
                self._write(self.replica.buffers_of(rank), self.layout.views(self.rows[clock % VERSIONS, rank]))
            self._exchange(clock)

    def take(self, clock: int, rows: Tensor) -> None:
        """The version `clock`, (V, width), as somebody else has it."""
        self.rows[clock % VERSIONS] = rows

    def turn(self, clock: int) -> None:
        """Let the replica's buffers be those of the version after `clock`, which begin as that has them."""
        before, after = self.rows[clock % VERSIONS], self.rows[(clock + 1) % VERSIONS]
        for rank in self.ranks if self.width else ():
            after[rank] = before[rank]
            self.views[rank] = self._views(clock + 1, rank)
            self.replica.buffers[rank] = dict(self.views[rank])

    def complete(self, clock: int) -> None:
        """The step that makes the version `clock` is over."""
        if self.width:
            if self.replica.device != self.rows.device:
                self.begin(clock)
                return
            for rank in self.ranks:  # what the model has put another tensor in place of is not in the rows yet
                self._write(self.replica.buffers[rank], self.views[rank])
            self._exchange(clock)

    def version(self, clock: int) -> Tensor:
        """(V, width), on the CPU, of a version that all have made."""
        return self.rows[clock % VERSIONS].cpu()

    def named(self, clock: int) -> dict[int, dict[str, Tensor]]:
        """Likewise, by virtual rank and name."""
        rows = self.version(clock).clone()
        return {rank: self.layout.views(rows[rank]) for rank in range(self.num_virtual)} if self.width else {}

    def _views(self, clock: int, rank: int) -> Named:
        """Of a row, where it is on the replica's device, else of a copy there. Those of a row are made once: for the
        buffers of ResNet-50 that takes 1.1 ms, as long as some of its layers."""
        row, place = self.rows[clock % VERSIONS, rank], (clock % VERSIONS, rank)
        if row.device != self.replica.device:
            return self.layout.views(row.to(self.replica.device))
        if place not in self.rows_views:
            self.rows_views[place] = self.layout.views(row)
        return self.rows_views[place]

    @property
    def _shape(self) -> tuple[int, int, int]:
        return VERSIONS, self.num_virtual, self.width

    @staticmethod
    def _write(values: Named, views: Named) -> None:
        for name, view in views.items():
            if values[name] is not view:
                view.copy_(values[name])

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
