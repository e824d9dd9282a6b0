"""The interface of the datasets: minibatches in the order of a plan."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

from trainers.data.draws import Int64Array
from trainers.data.facts import DataFacts
from trainers.data.reading import Reading
from trainers.errors import SpecRejected

Plan = Iterable[tuple[int, Int64Array]]
"""For each minibatch the epoch and the ids of its examples, (B,) int64; B may differ from one to the next."""

EVALUATION = -1
"""The epoch of a minibatch of examples that are held out."""


Data = Any
"""One minibatch as the task's `collate` made it: tensors, and lists, tuples and dicts of them, nested. By default with
B rows each: a tuple, such as (images, labels), or a dict by name."""


Skipped = tuple[int, str]
"""An example that was skipped, and what is wrong with it."""

Collate = Callable[[list[Any]], Data]
"""Makes a minibatch of examples."""


@dataclass(frozen=True, eq=False)
class Batch:
    """One minibatch, on the device of its dataset."""

    data: Data  # of images: (images (B, C, H, W) float32, normalised, labels (B,) int64 or, mixed, (B, classes))
    epoch: int  # EVALUATION for those that are held out
    examples: Int64Array  # (B,): ids in the training set, or among those that are held out
    skipped: tuple[Skipped, ...] = ()
    """Examples that belong here and could not be read: they count as used, and weigh nothing."""
    weight: float | None = None
    """What the minibatch weighs, where that was seen before it went to its device."""

    @property
    def num_used(self) -> int:
        """With those that were skipped: examples of the epoch that are done with this minibatch."""
        return len(self.examples) + len(self.skipped)

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def images(self) -> torch.Tensor:
        """The first of a pair: (B, C, H, W) float32, normalised."""
        images: torch.Tensor = self.data[0]
        return images

    @property
    def labels(self) -> torch.Tensor:
        """The second of a pair: (B,) int64; where images are mixed, the shares of the classes, (B, classes)."""
        labels: torch.Tensor = self.data[1]
        return labels


def mapped(data: Data, function: Callable[[torch.Tensor], torch.Tensor]) -> Data:
    """The same with each tensor replaced by what the function makes of it; what is no tensor stays."""
    if isinstance(data, torch.Tensor):
        return function(data)
    if isinstance(data, Mapping):
        return {name: mapped(part, function) for name, part in data.items()}
    if isinstance(data, tuple | list):
        parts = [mapped(part, function) for part in data]
        return type(data)(*parts) if hasattr(data, "_fields") else type(data)(parts)  # a named tuple takes them singly
    return data


def on_device(data: Data, device: torch.device) -> Data:
    """The same tensors on a device; those that are there already are not copied."""
    return mapped(data, lambda tensor: tensor.to(device))


def tensors_of(data: Data) -> Iterator[torch.Tensor]:
    """All tensors of a minibatch."""
    if isinstance(data, torch.Tensor):
        yield data
    elif isinstance(data, Mapping | tuple | list):
        for part in data.values() if isinstance(data, Mapping) else data:
            yield from tensors_of(part)


class Dataset(ABC):
    """A training set, a test set, and maybe one for validation. Ids of examples run from 0 to num_train - 1, and of
    those that are held out from 0 to num_validation + num_test - 1: those of the test set come last."""

    num_train: int
    num_test: int
    num_validation: int = 0
    """Examples that are evaluated while it trains; 0: those of the test set are."""
    facts: DataFacts
    """What a model has to fit: shapes as it sees them, after any crop and resize."""

    told: tuple[str, ...] = ()
    """What a person should know of it, in sentences without their ends."""

    skipped: tuple[Skipped, ...] = ()
    """Training rows that were left out when it was opened, by their numbers there, and what is wrong with each."""

    fits_in_memory: bool
    """Whether the set is held as arrays; otherwise it is streamed through DataLoader processes."""

    weigh: Callable[[Data], float | None] = staticmethod(lambda data: None)
    """What a minibatch of the training set weighs, where that can be seen (`Objective.weigh`)."""

    def collate_by(self, collate: Callable[[], Collate]) -> None:
        """Have minibatches made of examples by what this gives; it is called in each loader process. Called before the
        first minibatch.

        Raises:
            SpecRejected: The set has no single examples.
        """
        raise SpecRejected(
            "task: its collate makes minibatches of single examples, and these data come as arrays or as images with "
            "labels; give a dataset of your own whose examples are something else, or leave collate out"
        )

    @abstractmethod
    def batches(self, plan: Plan) -> Iterator[Batch]:
        """One augmented minibatch for each item of the plan, in its order.

        A set in memory takes an item from the plan only when the consumer asks for its minibatch; a streamed set reads
        the plan ahead.
        """

    def class_counts(self) -> tuple[int, ...]:
        """How many training examples each class has, or pixels where these have classes; empty where nobody knows
        without reading them all."""
        return ()

    def begin_epoch(self, epoch: int) -> None:  # noqa: B027  # most sets have nothing to do
        """Called by every worker before the first minibatch of an epoch; moves examples between workers."""

    def test_batches(self, batch: int) -> Iterator[Batch]:
        """The test set in its order, `batch` examples at a time, the last one smaller; never augmented."""
        return self._held_out(self.num_validation, self.num_validation + self.num_test, batch)

    def validation_batches(self, batch: int) -> Iterator[Batch]:
        """Likewise the validation set."""
        return self._held_out(0, self.num_validation, batch)

    def _held_out(self, first: int, end: int, batch: int) -> Iterator[Batch]:
        starts = range(first, end, batch)
        return self._evaluated(np.arange(start, min(start + batch, end), dtype=np.int64) for start in starts)

    @abstractmethod
    def _evaluated(self, minibatches: Iterator[Int64Array]) -> Iterator[Batch]:
        """Minibatches of these examples that are held out, (B,) each."""

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
