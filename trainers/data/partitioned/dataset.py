"""A dataset of which each worker holds only the examples of its own virtual workers; they move between rounds."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from trainers.collectives.protocol import Collectives
from trainers.data.augmentation import Augmentation, Images
from trainers.data.batches import Batch, Plan
from trainers.data.draws import Int64Array
from trainers.data.examples import Arrays, UInt8Array
from trainers.data.memory import MemoryDataset
from trainers.data.order import HeldOrder
from trainers.data.partitioned.exchange import PairwiseExchange
from trainers.data.partitioned.rows import Rows, row_type
from trainers.data.partitioned.shuffle import Shuffle, first_partitions

CHUNK = 4096
"""Images copied at a time from the source."""


@dataclass(frozen=True)
class Partitioning:
    """How examples are first divided among the virtual workers, and how they are shuffled between rounds."""

    start: Literal["sorted", "dealt"]
    shuffle: Shuffle


@dataclass(frozen=True, eq=False)
class Partition:
    """The examples that one worker holds."""

    rows: Rows
    order: HeldOrder
    ranks: range
    shuffle: Shuffle

    def shuffle_before(self, epoch: int, exchange: PairwiseExchange) -> None:
        """Shuffle before the round `epoch`: decide where every example goes, and move it. Every worker calls it."""
        held = {rank: self.rows.of(rank) for rank in self.ranks}
        for rank, to in self.shuffle.destinations(epoch, held, exchange.gather).items():
            self.rows.rows["rank"][self.rows.find(held[rank].ids)] = to
        exchange.deliver(self.rows)
        self.hold()

    def hold(self) -> None:
        """Update the index and the order after rows have changed."""
        self.rows.index()
        self.order.hold({rank: self.rows.of(rank).ids for rank in self.ranks})


class PartitionedDataset(MemoryDataset):
    """The test set, and the part of the training set that `hold` and the shuffles assign to this worker.

    Before `hold` is called minibatches are read from the source, which is opened for them and released again.
    """

    def __init__(
        self,
        arrays: Arrays,
        augmentation: Augmentation,
        device: torch.device,
        source: Callable[[], AbstractContextManager[UInt8Array]],
    ) -> None:
        """arrays: without training images. source: opens them, (N, C, H, W)."""
        super().__init__(arrays, augmentation, device)
        self._source = source
        self._partition: Partition | None = None
        self._exchange: PairwiseExchange | None = None

    def hold(self, order: HeldOrder, ranks: range, how: Partitioning, rounds: int) -> None:
        """Hold the examples that the virtual `ranks` have after the shuffles before that many rounds."""
        arrays = self._opened()
        initial = [order.examples_of(rank, epoch=0) for rank in range(order.num_virtual)]
        first = first_partitions(how.start, initial, arrays.train_labels)
        held = how.shuffle.replayed(first, arrays.train_labels, rounds)
        ids = np.concatenate([held[rank] for rank in ranks])
        # One spare row per virtual worker: a move never needs more.
        rows = Rows(row_type(arrays.image_shape), len(ids) + order.num_virtual)
        mine = rows.rows[: len(ids)]
        mine["id"], mine["label"] = ids, arrays.train_labels[ids]
        mine["rank"] = np.repeat(ranks, [len(held[rank]) for rank in ranks])
        with self._source() as images:
            for start in range(0, len(ids), CHUNK):
                mine["image"][start : start + CHUNK] = images.take(ids[start : start + CHUNK], axis=0)
        self._partition = Partition(rows, order, ranks, how.shuffle)
        self._partition.hold()
        self._arrays = replace(arrays, train_labels=arrays.train_labels[:0].copy())

    def meet(self, collectives: Collectives) -> None:
        """Move examples through these collectives from now on."""
        assert self._partition is not None
        self._exchange = PairwiseExchange(collectives, self._partition.order.num_virtual, self._device)

    def begin_epoch(self, epoch: int) -> None:
        assert self._partition is not None
        assert self._exchange is not None
        if self._partition.shuffle.kind != "none":
            self._partition.shuffle_before(epoch, self._exchange)

    def batches(self, plan: Plan) -> Iterator[Batch]:
        if self._partition is not None:
            yield from super().batches(plan)
            return
        with self._source() as images:
            source = MemoryDataset(replace(self._opened(), train_images=images), self._augmentation, self._device)
            yield from source.batches(plan)

    def _training(self, arrays: Arrays, examples: Int64Array) -> tuple[Images, Int64Array]:
        assert self._partition is not None
        found = self._partition.rows
        slots = found.find(examples)
        return self._on_device(found.rows["image"][slots]), found.rows["label"][slots].astype(np.int64)

    def close(self) -> None:
        super().close()
        self._partition = None
