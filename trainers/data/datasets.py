"""The front doors of the data: `open_dataset`, and `open_partitioned` for workers that hold only their own examples."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from trainers.data.augmentation import Augmentation
from trainers.data.batches import Batch, Dataset
from trainers.data.examples import Arrays, Source, UInt8Array
from trainers.data.memory import MemoryDataset
from trainers.data.node_memory import share
from trainers.data.partition import PartitionedDataset
from trainers.data.sources import read_source
from trainers.data.streamed import StreamedDataset, side_of
from trainers.errors import SpecRejected
from trainers.spec import DataSpec

__all__ = ["Batch", "Dataset", "open_dataset", "open_partitioned"]

CPU = torch.device("cpu")


def open_dataset(data: DataSpec, seed: int, folder: Path | None = None, device: torch.device = CPU) -> Dataset:
    """The dataset that a spec names.

    seed: the run's, for augmentation. folder: a directory in the node's shared memory in which all processes of the
    run on this node find the set (the caller removes it in the end); None: in private memory. device: where the
    minibatches are delivered; they are sent there as uint8 and augmented and normalised there.

    Raises DataNotFound with the path and the remedy when the set is absent, UserCodeFailed when a function of the
    user's raises or returns something else, SpecRejected for an unknown name.
    """
    source = read_source(data) if folder is None else share(data, folder, read_source)
    augmentation = _augmentation(data, seed, source)
    if isinstance(source, Arrays) and source.num_bytes <= data.memory_limit_bytes:
        return MemoryDataset(source, augmentation, device)
    return StreamedDataset(data, source, augmentation, device)


def open_partitioned(
    data: DataSpec, seed: int, folder: Path | None = None, device: torch.device = CPU
) -> PartitionedDataset:
    """The same set, of which nothing but the test set stays in memory until `hold` is called.

    The processes that share `folder` read the source one after the other, so that it is not in memory many times over.

    Raises what `open_dataset` raises, and SpecRejected where the set is read example by example.
    """

    @contextmanager
    def opened() -> Iterator[Arrays]:
        with _alone(folder):
            source = read_source(data)
            if not isinstance(source, Arrays):
                raise SpecRejected(
                    f"algorithm: workers that hold their own examples need an array of images, and {data.name} is read "
                    "file by file; take sync, downpour, mixed or admm, or give arrays by a function of your own"
                )
            yield source

    @contextmanager
    def images() -> Iterator[UInt8Array]:
        with opened() as source:
            yield source.train_images

    with opened() as source:
        augmentation = _augmentation(data, seed, source)
        rest = replace(source, train_images=source.train_images[:0].copy())
    return PartitionedDataset(rest, augmentation, device, images)


def _augmentation(data: DataSpec, seed: int, source: Source) -> Augmentation:
    return Augmentation(
        seed=seed,
        side=side_of(data, source),
        resized_crop=data.random_resized_crop > 0,
        padding=data.random_crop,
        flip=data.horizontal_flip,
    )


@contextmanager
def _alone(folder: Path | None) -> Iterator[None]:
    """No other process that was given the same folder is in here."""
    if folder is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "source.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel lets go of it when its holder dies
        yield
