"""Datasets that do not fit in memory: decoded, cropped and mirrored by DataLoader processes, normalised here."""

import multiprocessing
import os
import threading
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

from trainers.data.augmentation import Augmentation
from trainers.data.batches import EVALUATION, Batch, Dataset, Plan
from trainers.data.config import DataSpec
from trainers.data.delivery import Delivery, sent_to
from trainers.data.draws import Int64Array
from trainers.data.examples import Arrays, Ragged, Source, image_tensor
from trainers.data.facts import DataFacts
from trainers.data.loader_files import begin_files, end_files, is_running
from trainers.data.photographs import read_example
from trainers.data.reading import Reading, ReadingBoard
from trainers.data.sources import read_source
from trainers.errors import MillraceError, RunFailed, SpecRejected, UserCodeFailed

PREFETCH = 4
"""Minibatches that each process prepares in advance."""

PARENT_LOOK_S = 1.0

Loaded = tuple[torch.Tensor, torch.Tensor, int, Int64Array]
"""uint8 images (B, C, H, W), labels (B,), epoch and examples (B,)."""


class StreamedDataset(Dataset):
    """A training and a test half, each with loader processes of its own from its first minibatch to `close()`.

    Each process opens the source for itself from the spec, so a user's dataset need not be picklable and no array is
    sent through a pipe. With `loader_processes: 0` the calling thread does the work. Each half runs one plan at a time
    and reads it ahead by up to PREFETCH minibatches per process.
    """

    fits_in_memory = False

    def __init__(self, data: DataSpec, source: Source, augmentation: Augmentation, device: torch.device) -> None:
        self._train = Examples(data, source, augmentation, training=True)
        self._test = Examples(data, source, augmentation, training=False)
        self.num_train, self.num_test = len(self._train), len(self._test)
        self.facts = DataFacts(self._train.image_shape, source.num_classes)
        self._normalisation = source.normalisation
        self._processes = data.loader_processes
        self._device = device
        self._delivery = Delivery(device)
        self._loaders: dict[bool, _PlanLoader] = {}

    def batches(self, plan: Plan) -> Iterator[Batch]:
        return self._normalised(self._train, plan)

    def test_batches(self, batch: int) -> Iterator[Batch]:
        starts = range(0, self.num_test, batch)
        plan = ((EVALUATION, np.arange(start, min(start + batch, self.num_test), dtype=np.int64)) for start in starts)
        return self._normalised(self._test, plan)

    def close(self) -> None:
        for loader in self._loaders.values():
            loader.close()

    def reading(self) -> Reading | None:
        under_way = [found for half in (self._train, self._test) if (found := half.board.longest()) is not None]
        return max(under_way, key=lambda found: found.seconds, default=None)

    def _normalised(self, half: "Examples", plan: Plan) -> Iterator[Batch]:
        if half.training not in self._loaders:
            self._loaders[half.training] = _PlanLoader(half, self._processes)
        for images, labels, epoch, examples in self._loaders[half.training].run(plan):
            with self._delivery.beside():
                normalised = self._normalisation(sent_to(images, self._device))
                batch = Batch((normalised, sent_to(labels, self._device)), epoch, examples)
            yield self._delivery.delivered(batch)


class Examples(torch.utils.data.Dataset[Loaded | MillraceError]):
    """One half of a dataset for DataLoader: an index is an item of the plan, an element a complete minibatch.

    Only the spec is sent to a loader process; the source is opened there at the first minibatch.
    """

    def __init__(self, data: DataSpec, source: Source, augmentation: Augmentation, training: bool) -> None:
        self.training = training
        self.seed = augmentation.seed
        self._data = data
        self._source: Source | None = source
        self._augmentation = augmentation
        self.board = ReadingBoard(data.loader_processes)
        channels, height, width = self._first(source).shape
        self.image_shape = (channels, augmentation.side or height, augmentation.side or width)
        if not training:
            self._example(0)  # what cannot be read in this half is found before training, too

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_source": None}

    def __len__(self) -> int:
        source = self._opened()
        if isinstance(source, Arrays):
            return len(source.train_labels if self.training else source.test_labels)
        return len(source.train if self.training else source.test)

    def __getitem__(self, item: tuple[int, Int64Array]) -> Loaded | MillraceError:
        """A minibatch, or the error with which it failed: as a value, an error keeps its message between processes."""
        epoch, examples = item
        try:
            return self._minibatch(epoch, examples)
        except MillraceError as error:
            return error

    def _minibatch(self, epoch: int, examples: Int64Array) -> Loaded:
        if not len(examples):
            empty = torch.empty((0, *self.image_shape), dtype=torch.uint8)
            return empty, torch.empty(0, dtype=torch.int64), epoch, examples
        images, labels = zip(*[self._example(int(i)) for i in examples], strict=True)
        if self._augmentation.side == 0 and any(image.shape != self.image_shape for image in images):
            raise SpecRejected(
                f"{self._data.name}: images have different sizes; set data.random_resized_crop to the side to train on"
            )
        if self.training:
            batch = self._augmentation.train(images, epoch, examples)
        else:
            batch = self._augmentation.evaluate(images)
        return batch, torch.tensor(labels, dtype=torch.int64), epoch, examples

    def _example(self, i: int) -> tuple[torch.Tensor, int]:
        """Image uint8 (C, h, w) and label of one example, checked."""
        self.board.begin(i)
        try:
            image, label = self._read(i)
        finally:
            self.board.end()
        num_classes = self._opened().num_classes
        if not 0 <= int(label) < num_classes:
            raise UserCodeFailed(f"{self._data.name}: the label of example {i} is {label}, not in 0..{num_classes - 1}")
        return image_tensor(image, self._data.name, self.image_shape[0]), int(label)

    def _read(self, i: int) -> tuple[Any, Any]:
        """Image and label of example i as the source has them."""
        source = self._opened()
        if isinstance(source, Arrays):
            images = source.train_images if self.training else source.test_images
            assert not isinstance(images, Ragged)  # these are in memory
            return images[i], (source.train_labels if self.training else source.test_labels)[i]
        return read_example(self._data, source, i, self.training)

    def _first(self, source: Source) -> torch.Tensor:
        """The first training image, uint8 (C, h, w)."""
        if isinstance(source, Arrays):
            assert not isinstance(source.train_images, Ragged)
            return image_tensor(source.train_images[0], self._data.name)
        return image_tensor(read_example(self._data, source, 0, True)[0], self._data.name)

    def _opened(self) -> Source:
        if self._source is None:  # in a loader process; its parent has downloaded the data already
            self._source = read_source(self._data.model_copy(update={"download": False}))
        return self._source


class _PlanLoader:
    """A DataLoader whose processes serve one plan after the other; a new plan discards prefetched minibatches."""

    def __init__(self, examples: Examples, processes: int) -> None:
        self._plan = _PlanSampler()
        options: dict[str, Any] = {}
        self._has_files = processes > 0
        if processes:
            begin_files()
            # Forked from a process that has imported torch for all of them, but never from the calling one, which has
            # threads (Ray's and torch's), whose locks a fork would copy.
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload([__name__])
            options = {"multiprocessing_context": context, "persistent_workers": True, "prefetch_factor": PREFETCH}
            options |= {"worker_init_fn": partial(_end_with_parent, os.getpid())}
        self._loader: DataLoader[Any] | None = DataLoader(
            examples,
            sampler=self._plan,
            batch_size=None,  # an element is a minibatch already
            collate_fn=_identity,
            num_workers=processes,
            generator=torch.Generator().manual_seed(
                examples.seed
            ),  # else DataLoader draws from torch's global generator
            **options,
        )
        self._running: Iterator[Loaded | MillraceError] | None = None
        self._num_plans = 0

    def run(self, plan: Plan) -> Iterator[Loaded]:
        """The minibatches of a plan, in its order. Raises the error of an example that cannot be read."""
        assert self._loader is not None, "a minibatch was asked of a dataset after close()"
        self._plan.items = plan
        self._running = iter(self._loader)
        number = self._num_plans = self._num_plans + 1
        while True:
            assert self._running is not None, "a minibatch was asked of a dataset after close()"
            assert number == self._num_plans, "a minibatch was asked of a plan after another plan had begun"
            try:
                loaded = next(self._running)
            except StopIteration:
                return
            except (RuntimeError, ConnectionError, EOFError) as error:
                # torch has no error class for a loader process that was killed. If its sockets close before torch
                # notices its death, the error is that of receiving its tensors.
                if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
                    raise
                raise RunFailed(f"a data loading process ended ({error}); is there memory for it?") from error
            if isinstance(loaded, MillraceError):
                raise loaded
            yield loaded

    def close(self) -> None:
        """End the processes."""
        # Torch does so when the iterator is deleted; but where a loader has failed, the error's traceback still has it.
        shut_down = getattr(self._running, "_shutdown_workers", None)
        if shut_down is not None:
            shut_down()
        self._loader = None
        self._running = None
        self._plan.items = ()
        if self._has_files:
            self._has_files = False
            end_files()


class _PlanSampler(Sampler[Any]):
    """Hands out the items of the current plan."""

    def __init__(self) -> None:
        self.items: Iterable[Any] = ()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


def _end_with_parent(parent: int, _: int) -> None:
    """Have this loader process end when the process that it loads for has, if only while this one was starting: torch
    looks only for the process that forked it, between two minibatches, and from here on."""

    def watch() -> None:
        while is_running(parent):
            time.sleep(PARENT_LOOK_S)
        os._exit(1)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


def _identity(loaded: Any) -> Any:
    return loaded
