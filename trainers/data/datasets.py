"""The front door of the data: `open_dataset`."""

from pathlib import Path

import torch

from trainers.data.augmentation import Augmentation
from trainers.data.batches import Batch, Dataset
from trainers.data.examples import Arrays
from trainers.data.memory import MemoryDataset
from trainers.data.node_memory import share
from trainers.data.sources import read_source
from trainers.data.streamed import StreamedDataset, side_of
from trainers.spec import DataSpec

__all__ = ["Batch", "Dataset", "open_dataset"]

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
    augmentation = Augmentation(
        seed=seed,
        side=side_of(data, source),
        resized_crop=data.random_resized_crop > 0,
        padding=data.random_crop,
        flip=data.horizontal_flip,
    )
    if isinstance(source, Arrays) and source.num_bytes <= data.memory_limit_bytes:
        return MemoryDataset(source, augmentation, device)
    return StreamedDataset(data, source, augmentation, device)
