"""Opening a dataset: `open_dataset`, and `open_partitioned` for workers that hold only their own examples."""

import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from trainers import user_code
from trainers.data.batches import Batch, Dataset
from trainers.data.config import DataSpec
from trainers.data.draws import Int64Array
from trainers.data.examples import Arrays, Ragged, Source, StreamedSource, UInt8Array
from trainers.data.images.augmentation import Augmentation
from trainers.data.images.mixing import Mixing
from trainers.data.memory import MemoryDataset
from trainers.data.names import RECORDS
from trainers.data.node_lock import Note, alone_on_node
from trainers.data.node_memory import map_shared
from trainers.data.partitioned.dataset import PartitionedDataset, PartitionedImages, PartitionedRecords
from trainers.data.photographs import side_of
from trainers.data.records.columns import Columns, ColumnsDataset
from trainers.data.records.objects import ObjectSource
from trainers.data.records.ray_rows import OpenRows
from trainers.data.records.text import open_text
from trainers.data.sources import read_any
from trainers.data.streamed import ImageHalf, ObjectHalf, StreamedDataset
from trainers.errors import SpecRejected

__all__ = ["Batch", "Dataset", "count_examples", "open_dataset", "open_partitioned"]

CPU = torch.device("cpu")

_NEEDS_MEMORY = (
    "algorithm: workers that hold their own examples need them in memory, and {} is read one by one, or is larger than "
    "data.memory_limit_bytes or than there is room for; take sync, downpour, mixed or admm, or give arrays by a "
    "function of your own"
)


def open_dataset(
    data: DataSpec,
    seed: int,
    folder: Path | None = None,
    device: torch.device = CPU,
    note: Note = lambda _: None,
    open_rows: OpenRows | None = None,
) -> Dataset:
    """Open the dataset that a spec names.

    Args:
        data: the section of the spec.
        seed: of the run, for augmentation.
        folder: a directory in the node's shared memory, where all processes of the run on this node map the same copy;
            the caller removes it in the end; photographs that fit are decoded there. None: the set is read into
            private memory, and photographs are streamed.
        device: where minibatches are delivered. They are sent there as uint8, then augmented and normalised.
        note: is told what takes long, in a few words.
        open_rows: the way to the rows of a Ray Dataset, in a process of a run on Ray.

    Raises:
        DataNotFound: The set is not there; names the path and the remedy.
        UserCodeFailed: A function of the user's raised or returned something else.
        SpecRejected: The name is unknown.
    """
    if data.name == "text":
        return open_text(data, folder, device, note)
    read = partial(read_any, open_rows=open_rows)
    source = read(data) if folder is None else map_shared(data, folder, read, note)
    changes = data.varied_by if data.name in RECORDS else (*data.varied_by, *data.seen_by)
    if changes and isinstance(source, Columns | ObjectSource):
        raise SpecRejected(f"data.{changes[0]}: for images with labels, and {data.name} gives none; leave it out")
    if isinstance(source, Columns):
        return ColumnsDataset(source, data.limit, device)
    if isinstance(source, ObjectSource):
        halves = [ObjectHalf(data, source, seed, training) for training in (True, False)]
        return StreamedDataset(halves[0], halves[1], source.facts, device)
    augmentation = _augmentation(data, seed, source)
    if isinstance(source, Arrays) and source.num_bytes <= data.memory_limit_bytes:
        return MemoryDataset(source, augmentation, device)
    train, test = (ImageHalf(data, source, augmentation, training) for training in (True, False))
    return StreamedDataset(train, test, train.facts, device)


def count_examples(data: DataSpec, code: str | None = None) -> int:
    """How many training examples a spec has, by opening its data. `code`: the folder of a dataset of the user's own.

    Raises as `open_dataset`.
    """
    with user_code.on_path(code), open_dataset(data, seed=0) as dataset:
        return dataset.num_train


def open_partitioned(
    data: DataSpec,
    seed: int,
    folder: Path | None = None,
    device: torch.device = CPU,
    note: Note = lambda _: None,
    open_rows: OpenRows | None = None,
) -> PartitionedDataset:
    """Open the same dataset for a worker that holds only part of the training set.

    Only the test set stays in memory until `hold` is called. Processes that are given the same `folder` read the source
    one after the other, so that it is in memory only once at a time; photographs stay there decoded, for all of them.

    Raises:
        SpecRejected: The set is read example by example, is none of images, or its images differ in size; or as
            `open_dataset`, whose other errors it raises too.
    """
    if data.name in RECORDS:
        return _records(open_dataset(data, seed, folder, device, note), device)

    @contextmanager
    def opened() -> Iterator[Arrays | Columns]:
        with _exclusive(folder, note):
            source = read_any(data, open_rows)
            if isinstance(source, ObjectSource):
                raise SpecRejected(_NEEDS_MEMORY.format(data.name))
            if isinstance(source, StreamedSource):
                source = _decoded(data, source, folder, note)
            yield source

    @contextmanager
    def images() -> Iterator[UInt8Array]:
        with opened() as source:
            assert isinstance(source, Arrays)
            yield _of_one_size(data, source)

    with opened() as source:
        if isinstance(source, Columns):
            return _records(open_dataset(data, seed, folder, device, note, open_rows), device)
        augmentation = _augmentation(data, seed, source)
        rest = replace(source, train_images=_of_one_size(data, source)[:0].copy())
    return PartitionedImages(rest, augmentation, device, images)


def _records(whole: Dataset, device: torch.device) -> PartitionedDataset:
    return PartitionedRecords(whole, _targets(whole), device)


def _targets(whole: Dataset) -> Int64Array:
    """By which the examples of a set without images are sorted: their labels, or nothing but their order."""
    column = whole.labels() if isinstance(whole, ColumnsDataset) else None
    return np.zeros(whole.num_train, dtype=np.int64) if column is None else column


def _decoded(data: DataSpec, source: Source, folder: Path | None, note: Note) -> Arrays:
    """Photographs as arrays, mapped from `folder`, or from a folder that has gone when this returns."""
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="millrace-photographs-") as passing:
            return _decoded(data, source, Path(passing), note)
    decoded = map_shared(data, folder, lambda _: source, note)
    if not isinstance(decoded, Arrays):
        raise SpecRejected(_NEEDS_MEMORY.format(data.name))
    return decoded


def _of_one_size(data: DataSpec, arrays: Arrays) -> UInt8Array:
    """The training images, (N, C, H, W)."""
    if isinstance(arrays.train_images, Ragged):
        raise SpecRejected(
            f"data: workers that hold their own examples need images of one size, and those of {data.name} differ; "
            "leave out random_resized_crop, and set data.resize to the side to train on"
        )
    return arrays.train_images


def _augmentation(data: DataSpec, seed: int, source: Source) -> Augmentation:
    alphas = {name: how.alpha for name in ("mixup", "cutmix") if (how := getattr(data, name)) is not None}
    return Augmentation(
        seed=seed,
        side=side_of(data, source),
        resized_crop=data.random_resized_crop > 0,
        padding=data.random_crop,
        flip=data.horizontal_flip,
        operations=data.rand_augment,
        erasing=data.random_erasing,
        mixing=Mixing(seed, source.num_classes, **alphas) if alphas else None,
    )


def _exclusive(folder: Path | None, note: Note) -> AbstractContextManager[None]:
    """Held by one process at a time among those that are given the same folder."""
    if folder is None:
        return nullcontext()
    folder.mkdir(parents=True, exist_ok=True)
    return alone_on_node(folder / "source.lock", note)
