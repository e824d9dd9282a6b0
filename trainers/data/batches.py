"""The interface of the datasets: minibatches in the order of a plan."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch

from trainers.data.draws import Int64Array
from trainers.data.facts import DataFacts
from trainers.data.reading import Reading

Plan = Iterable[tuple[int, Int64Array]]
"""For each minibatch the epoch and the ids of its examples, (B,) int64; B may differ from one to the next."""

EVALUATION = -1
"""The epoch of a minibatch of the test set."""


Data = Any
"""Tensors of one minibatch, each with B rows: a tuple, such as (images, labels), or a dict by name."""


@dataclass(frozen=True, eq=False)
class Batch:
    """One minibatch, on the device of its dataset."""

    data: Data  # of images: (images (B, C, H, W) float32, normalised, labels (B,) int64)
    epoch: int  # EVALUATION for the test set
    examples: Int64Array  # (B,): ids in the training set, or in the test set

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def images(self) -> torch.Tensor:
        """The first of a pair: (B, C, H, W) float32, normalised."""
        images: torch.Tensor = self.data[0]
        return images

    @property
    def labels(self) -> torch.Tensor:
        """The second of a pair: (B,) int64."""
        labels: torch.Tensor = self.data[1]
        return labels


def on_device(data: Data, device: torch.device) -> Data:
    """The same tensors on a device; those that are there already are not copied."""
    if isinstance(data, torch.Tensor):
        return data.to(device)
    if isinstance(data, dict):
        return {name: on_device(part, device) for name, part in data.items()}
    if isinstance(data, tuple | list):
        return type(data)(on_device(part, device) for part in data)
    return data


def tensors_of(data: Data) -> Iterator[torch.Tensor]:
    """All tensors of a minibatch."""
    if isinstance(data, torch.Tensor):
        yield data
    elif isinstance(data, dict | tuple | list):
        for part in data.values() if isinstance(data, dict) else data:
            yield from tensors_of(part)


class Dataset(ABC):
    """A training and a test set. Ids of examples run from 0 to num_train - 1, from 0 to num_test - 1."""

    num_train: int
    num_test: int
    facts: DataFacts
    """What a model has to fit: shapes as it sees them, after any crop and resize."""

    told: tuple[str, ...] = ()
    """What a person should know of it, in sentences without their ends."""

    fits_in_memory: bool
    """Whether the set is held as uint8; otherwise it is streamed through DataLoader processes."""

    @abstractmethod
    def batches(self, plan: Plan) -> Iterator[Batch]:
        """One augmented minibatch for each item of the plan, in its order.

        A set in memory takes an item from the plan only when the consumer asks for its minibatch; a streamed set reads
        the plan ahead.
        """

    def begin_epoch(self, epoch: int) -> None:  # noqa: B027  # most sets have nothing to do
        """Called by every worker before the first minibatch of an epoch; moves examples between workers."""

    @abstractmethod
    def test_batches(self, batch: int) -> Iterator[Batch]:
        """The test set in its order, `batch` examples at a time, the last one smaller; never augmented."""

    def reading(self) -> Reading | None:
        """The example that has been read for longest, where examples are read while it trains. Called from any
        thread."""
        return None

    @abstractmethod
    def close(self) -> None:
        """End the loader processes, if any, and release the memory. Calling it twice is allowed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
