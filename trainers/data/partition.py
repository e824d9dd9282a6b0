"""A set that no worker holds whole: each has the examples of its own virtual workers, which move between rounds."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from trainers.data.augmentation import Augmentation
from trainers.data.batches import Batch, Plan
from trainers.data.draws import Int64Array
from trainers.data.examples import Arrays, UInt8Array
from trainers.data.exchange import Exchange
from trainers.data.memory import MemoryDataset
from trainers.data.rows import Rows, row_type
from trainers.data.shuffle import Shuffle, first_partitions
from trainers.elastic.order import HeldOrder
from trainers.transport.protocols import Collectives

AT_ONCE = 4096
"""Images copied at a time out of the source."""


@dataclass(frozen=True)
class Partitioning:
    """How a set is divided among the virtual workers, and how it is dealt anew."""

    start: Literal["sorted", "dealt"]
    shuffle: Shuffle


@dataclass(frozen=True, eq=False)
class Partition:
    """What one worker holds."""

    rows: Rows
    order: HeldOrder
    ranks: range
    shuffle: Shuffle

    def deal(self, epoch: int, exchange: Exchange) -> None:
        """The shuffle before the round `epoch`: decide where every example goes, and bring it there. All call it."""
        held = {rank: self.rows.of(rank) for rank in self.ranks}
        for rank, to in self.shuffle.destinations(epoch, held, exchange.gather).items():
            self.rows.rows["rank"][self.rows.find(held[rank].ids)] = to
        exchange.bring_home(self.rows)
        self.hold()

    def hold(self) -> None:
        """Let the order know."""
        self.rows.index()
        self.order.hold({rank: self.rows.of(rank).ids for rank in self.ranks})


class PartitionedDataset(MemoryDataset):
    """The test set, and of the training set what `hold` and the shuffles bring; before that, minibatches are cut out of
    the source, which is opened for them and let go again."""

    def __init__(
        self,
        arrays: Arrays,
        augmentation: Augmentation,
        device: torch.device,
        source: Callable[[], AbstractContextManager[UInt8Array]],
    ) -> None:
        """arrays: without training images. source: lends them, (N, C, H, W)."""
        super().__init__(arrays, augmentation, device)
        self._source = source
        self._partition: Partition | None = None
        self._exchange: Exchange | None = None

    def hold(self, order: HeldOrder, ranks: range, how: Partitioning, rounds: int) -> None:
        """Take the examples of the virtual `ranks`, as they lie after the shuffles before so many rounds."""
        arrays = self._opened()
        dealt = [order.dealt(0, rank) for rank in range(order.num_virtual)]
        first = first_partitions(how.start, dealt, arrays.train_labels)
        held = how.shuffle.replayed(first, arrays.train_labels, rounds)
        ids = np.concatenate([held[rank] for rank in ranks])
        # More rows than workers: a move never needs more free ones than that.
        rows = Rows(row_type(arrays.train_images.shape[1:]), len(ids) + order.num_virtual)
        mine = rows.rows[: len(ids)]
        mine["id"], mine["label"] = ids, arrays.train_labels[ids]
        mine["rank"] = np.repeat(ranks, [len(held[rank]) for rank in ranks])
        with self._source() as images:
            for start in range(0, len(ids), AT_ONCE):
                mine["image"][start : start + AT_ONCE] = images.take(ids[start : start + AT_ONCE], axis=0)
        self._partition = Partition(rows, order, ranks, how.shuffle)
        self._partition.hold()
        self._arrays = replace(arrays, train_labels=arrays.train_labels[:0].copy())

    def meet(self, collectives: Collectives) -> None:
        """Examples move through these from now on."""
        assert self._partition is not None
        self._exchange = Exchange(collectives, self._partition.order.num_virtual, self._device)

    def begin_epoch(self, epoch: int) -> None:
        assert self._partition is not None
        assert self._exchange is not None
        if self._partition.shuffle.kind != "none":
            self._partition.deal(epoch, self._exchange)

    def batches(self, plan: Plan) -> Iterator[Batch]:
        if self._partition is not None:
            yield from super().batches(plan)
            return
        with self._source() as images:
            whole = MemoryDataset(replace(self._opened(), train_images=images), self._augmentation, self._device)
            yield from whole.batches(plan)

    def _training(self, arrays: Arrays, examples: Int64Array) -> tuple[UInt8Array, Int64Array]:
        assert self._partition is not None
        found = self._partition.rows
        slots = found.find(examples)
        return found.rows["image"][slots], found.rows["label"][slots].astype(np.int64)

    def close(self) -> None:
        super().close()
        self._partition = None
