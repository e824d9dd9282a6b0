"""Sets that do not fit in memory: decoded, cropped and mirrored by DataLoader processes, normalised here."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

from trainers import usercode
from trainers.data.augmentation import Augmentation
from trainers.data.batches import EVALUATION, Batch, Dataset, Plan
from trainers.data.draws import Int64Array
from trainers.data.examples import Arrays, Source, image_tensor
from trainers.data.sources import read_source
from trainers.errors import MillraceError, RunFailed, SpecRejected, UserCodeFailed
from trainers.spec import DataSpec

DEFAULT_SIDE = 224
"""Pixels that photographs of different sizes are brought to where the spec gives no `random_resized_crop`."""

PREFETCH = 4
"""Minibatches that each process computes ahead of need."""

Loaded = tuple[torch.Tensor, torch.Tensor, int, Int64Array]
"""uint8 images (B, C, H, W), labels (B,), epoch and examples (B,)."""


class StreamedDataset(Dataset):
    """Two halves, each with loader processes of its own from its first minibatch to `close()`.

    Each process opens the source for itself from the spec: a user's dataset need not be picklable, and no array is
    sent through a pipe. `loader_processes` 0 computes in the calling thread. One plan runs at a time on each half; a
    plan is read ahead by up to PREFETCH minibatches a process.
    """

    fits_in_memory = False

    def __init__(self, data: DataSpec, source: Source, augmentation: Augmentation, device: torch.device) -> None:
        self._train = Examples(data, source, augmentation, training=True)
        self._test = Examples(data, source, augmentation, training=False)
        self.num_train, self.num_test = len(self._train), len(self._test)
        self.num_classes = source.num_classes
        self.image_shape = self._train.image_shape
        self._normalisation = source.normalisation
        self._processes = data.loader_processes
        self._device = device
        self._loaders: dict[bool, _Loader] = {}

    def batches(self, plan: Plan) -> Iterator[Batch]:
        return self._normalised(self._train, plan)

    def test_batches(self, batch: int) -> Iterator[Batch]:
        starts = range(0, self.num_test, batch)
        plan = ((EVALUATION, np.arange(start, min(start + batch, self.num_test), dtype=np.int64)) for start in starts)
        return self._normalised(self._test, plan)

    def close(self) -> None:
        for loader in self._loaders.values():
            loader.close()

    def _normalised(self, half: "Examples", plan: Plan) -> Iterator[Batch]:
        if half.training not in self._loaders:
            self._loaders[half.training] = _Loader(half, self._processes)
        for images, labels, epoch, examples in self._loaders[half.training].run(plan):
            normalised = self._normalisation(images.to(self._device))
            yield Batch(normalised, labels.to(self._device), epoch, examples)


def side_of(data: DataSpec, source: Source) -> int:
    """Pixels of the square that the model sees, 0 where the images have one size and keep it."""
    one_size = isinstance(source, Arrays) or source.one_size
    return data.random_resized_crop or (0 if one_size else DEFAULT_SIDE)


class Examples(torch.utils.data.Dataset[Loaded | MillraceError]):
    """One half of a set as DataLoader sees it: an index is a whole item of the plan, an element a whole minibatch.

    Only the spec travels to a loader process; the source is opened there at the first minibatch.
    """

    def __init__(self, data: DataSpec, source: Source, augmentation: Augmentation, training: bool) -> None:
        self.training = training
        self.seed = augmentation.seed
        self._data = data
        self._source: Source | None = source
        self._augmentation = augmentation
        channels, height, width = self._first(source).shape
        self.image_shape = (channels, augmentation.side or height, augmentation.side or width)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_source": None}

    def __len__(self) -> int:
        source = self._opened()
        if isinstance(source, Arrays):
            return len(source.train_labels if self.training else source.test_labels)
        return len(source.train if self.training else source.test)

    def __getitem__(self, item: tuple[int, Int64Array]) -> Loaded | MillraceError:
        """A minibatch, or the error with which it failed: as a value it comes through a process with its own words."""
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
        image, label = self._read(i)
        num_classes = self._opened().num_classes
        if not 0 <= int(label) < num_classes:
            raise UserCodeFailed(f"{self._data.name}: the label of example {i} is {label}, not in 0..{num_classes - 1}")
        return image_tensor(image, self._data.name, self.image_shape[0]), int(label)

    def _read(self, i: int) -> tuple[Any, Any]:
        """Image and label of example i as the source has them."""
        source = self._opened()
        if isinstance(source, Arrays):
            images = source.train_images if self.training else source.test_images
            return images[i], (source.train_labels if self.training else source.test_labels)[i]
        try:
            image, label = (source.train if self.training else source.test)[i]
        except Exception as error:
            if usercode.is_user_name(self._data.name):
                raise usercode.failed(f"{self._data.name}, example {i},", error) from error
            raise RunFailed(f"{self._data.name}: example {i} cannot be read: {error}") from error
        return image, label

    def _first(self, source: Source) -> torch.Tensor:
        """The first training image, uint8 (C, h, w)."""
        image = source.train_images[0] if isinstance(source, Arrays) else source.train[0][0]
        return image_tensor(image, self._data.name)

    def _opened(self) -> Source:
        if self._source is None:  # in a loader process, after its parent has fetched what was to be downloaded
            self._source = read_source(self._data.model_copy(update={"download": False}))
        return self._source


class _Loader:
    """A DataLoader whose processes outlive a plan; a new plan throws away what was computed ahead for the last one."""

    def __init__(self, examples: Examples, processes: int) -> None:
        self._plan = _PlanSampler()
        options: dict[str, Any] = {}
        if processes:
            # never fork: the calling process has threads (Ray's and torch's), whose locks a fork would copy
            options = {"multiprocessing_context": "spawn", "persistent_workers": True, "prefetch_factor": PREFETCH}
        self._loader: DataLoader[Any] | None = DataLoader(
            examples,
            sampler=self._plan,
            batch_size=None,  # an element is a whole minibatch already
            collate_fn=_as_it_is,
            num_workers=processes,
            generator=torch.Generator().manual_seed(examples.seed),  # else one number is taken from torch's own stream
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
                # torch has no class of its own for a loader that was killed, and where its sockets close before
                # it counts as dead, lets through what taking its tensors said
                if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
                    raise
                raise RunFailed(f"a data loading process ended ({error}); is there memory for it?") from error
            if isinstance(loaded, MillraceError):
                raise loaded
            yield loaded

    def close(self) -> None:
        """Ends the processes: the loader and its iterator have no other owner, and join them when they go."""
        self._loader = None
        self._running = None
        self._plan.items = ()


class _PlanSampler(Sampler[Any]):
    """Hands out the items of the plan in force."""

    def __init__(self) -> None:
        self.items: Iterable[Any] = ()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


def _as_it_is(loaded: Any) -> Any:
    return loaded
