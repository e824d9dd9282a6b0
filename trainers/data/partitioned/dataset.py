"""A dataset of which each worker holds only the examples of its own virtual workers; they move between rounds."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from trainers.collectives.protocol import Collectives
from trainers.data.batches import Batch, Dataset, Plan
from trainers.data.draws import Int64Array
from trainers.data.examples import Arrays, UInt8Array
from trainers.data.images.augmentation import Augmentation, Images
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


class PartitionedDataset(Dataset):
    """A dataset of which this worker trains only the examples that `hold` and the shuffles assign to it."""

    _partition: Partition | None = None
    _exchange: PairwiseExchange | None = None
    _device: torch.device

    def hold(self, order: HeldOrder, ranks: range, how: Partitioning, rounds: int) -> None:
        """Hold the examples that the virtual `ranks` have after the shuffles before that many rounds."""
        labels = self._labels()
        order.hold({})  # of a generation before, where others were members
        initial = [order.examples_of(rank, epoch=0) for rank in range(order.num_virtual)]
        first = first_partitions(how.start, initial, labels)
        held = how.shuffle.replayed(first, labels, rounds)
        ids = np.concatenate([held[rank] for rank in ranks])
        # One spare row per virtual worker: a move never needs more.
        rows = Rows(row_type(self._row_shape()), len(ids) + order.num_virtual)
        mine = rows.rows[: len(ids)]
        mine["id"], mine["label"] = ids, labels[ids]
        mine["rank"] = np.repeat(ranks, [len(held[rank]) for rank in ranks])
        self._fill(mine, ids)
        self._partition = Partition(rows, order, ranks, how.shuffle)
        self._partition.hold()

    def meet(self, collectives: Collectives) -> None:
        """Move examples through these collectives from now on."""
        assert self._partition is not None
        self._exchange = PairwiseExchange(collectives, self._partition.order.num_virtual, self._device)

    def begin_epoch(self, epoch: int) -> None:
        assert self._partition is not None
        assert self._exchange is not None
        if self._partition.shuffle.kind != "none":
            self._partition.shuffle_before(epoch, self._exchange)

    @abstractmethod
    def _labels(self) -> Int64Array:
        """By which examples are sorted and shuffled, (N,)."""

    @abstractmethod
    def _row_shape(self) -> tuple[int, ...]:
        """Bytes of an example that move with it."""

    def _fill(self, rows: np.ndarray[Any, Any], ids: Int64Array) -> None:  # where nothing moves along
        """Copy the examples `ids` into their rows."""


class PartitionedRecords(PartitionedDataset):
    """Of a set that lies whole on every node: only which worker trains an example moves."""

    fits_in_memory = True

    def __init__(self, whole: Dataset, labels: Int64Array, device: torch.device) -> None:
        self._whole, self._by, self._device = whole, labels, device
        self.num_train, self.num_test, self.num_validation = whole.num_train, whole.num_test, whole.num_validation
        self.facts, self.told, self.skipped = whole.facts, whole.told, whole.skipped

    def batches(self, plan: Plan) -> Iterator[Batch]:
        return self._whole.batches(plan)

    def _evaluated(self, minibatches: Iterator[Int64Array]) -> Iterator[Batch]:
        return self._whole._evaluated(minibatches)

    def class_counts(self) -> tuple[int, ...]:
        return self._whole.class_counts()

    def close(self) -> None:
        self._whole.close()
        self._partition = None

    def _labels(self) -> Int64Array:
        return self._by

    def _row_shape(self) -> tuple[int, ...]:
        return (0,)


class PartitionedImages(PartitionedDataset, MemoryDataset):
    """Images: the test set, and the part of the training set that this worker holds.

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
        MemoryDataset.__init__(self, arrays, augmentation, device)
        self._source = source

    def batches(self, plan: Plan) -> Iterator[Batch]:
        if self._partition is not None:
            yield from MemoryDataset.batches(self, plan)
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
        MemoryDataset.close(self)
        self._partition = None

    def _labels(self) -> Int64Array:
        return self._opened().train_labels

    def _row_shape(self) -> tuple[int, ...]:
        return self._opened().image_shape

    def _fill(self, rows: np.ndarray[Any, Any], ids: Int64Array) -> None:
        with self._source() as images:
            for start in range(0, len(ids), CHUNK):
                rows["image"][start : start + CHUNK] = images.take(ids[start : start + CHUNK], axis=0)
