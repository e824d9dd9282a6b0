"""Sets that do not fit in memory: decoded, cropped and mirrored by DataLoader processes, normalised here."""

import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from torchvision.transforms.v2 import functional

from trainers import usercode
from trainers.data.augmentation import Augmentation
from trainers.data.batches import EVALUATION, Batch, Dataset, Plan
from trainers.data.draws import Int64Array
from trainers.data.sources import Arrays, Source, read_source
from trainers.errors import SpecRejected, UserCodeFailed
from trainers.spec import DataSpec

DEFAULT_SIDE = 224
"""Pixels that photographs of different sizes are brought to where the spec gives no `random_resized_crop`."""

PREFETCH = 4
"""Minibatches that each process computes ahead of need."""

Loaded = tuple[torch.Tensor, torch.Tensor, int, Int64Array]
"""uint8 images (B, C, H, W), labels (B,), epoch and examples (B,)."""


class StreamedDataset(Dataset):
    """Two half-sets, each with loader processes of its own from its first minibatch to `close()`.

    Each process opens the source for itself from the spec: a user's dataset need not be picklable, and no array is
    sent through a pipe. `loader_processes` 0 computes in the calling thread.
    """

    fits_in_memory = False

    def __init__(self, data: DataSpec, source: Source, augmentation: Augmentation, device: torch.device) -> None:
        self._train = Examples(data, source, True, augmentation)
        self._test = Examples(data, source, False, augmentation)
        self.num_train, self.num_test = len(self._train), len(self._test)
        self.num_classes = source.num_classes
        shape = self._train.first().shape
        height, width = (augmentation.side,) * 2 if augmentation.side else shape[1:]
        self.image_shape = (int(shape[0]), int(height), int(width))
        self._normalisation = source.normalisation
        self._processes = data.loader_processes
        self._device = device
        self._loaders: dict[bool, _Loader] = {}

    def batches(self, plan: Plan) -> Iterator[Batch]:
        return self._normalised(self._loader(self._train), plan)

    def test_batches(self, batch: int) -> Iterator[Batch]:
        starts = range(0, self.num_test, batch)
        plan = ((EVALUATION, np.arange(start, min(start + batch, self.num_test), dtype=np.int64)) for start in starts)
        return self._normalised(self._loader(self._test), plan)

    def close(self) -> None:
        for loader in self._loaders.values():
            loader.close()
        self._loaders.clear()

    def _loader(self, examples: "Examples") -> "_Loader":
        if examples.training not in self._loaders:
            self._loaders[examples.training] = _Loader(examples, self._processes)
        return self._loaders[examples.training]

    def _normalised(self, loader: "_Loader", plan: Plan) -> Iterator[Batch]:
        for images, labels, epoch, examples in loader.run(plan):
            normalised = self._normalisation(images.to(self._device))
            yield Batch(normalised, labels.to(self._device), epoch, examples)


def side_of(data: DataSpec, source: Source) -> int:
    """Pixels of the square that the model sees, 0 where the images have one size and keep it.

    Images that come as PIL photographs are taken to have different sizes, tensors and arrays to have one.
    """
    if data.random_resized_crop:
        return data.random_resized_crop
    if isinstance(source, Arrays):
        return 0
    image = source.train[0][0]
    return 0 if isinstance(image, torch.Tensor | np.ndarray) else DEFAULT_SIDE


def image_tensor(image: Any, name: str, channels: int | None = None) -> torch.Tensor:
    """uint8 (C, h, w) from a PIL image, a tensor or an array (C, h, w) or (h, w).

    channels: photographs are brought to as many (1 or 3); None: grey ones stay grey, all others become colour.
    Raises UserCodeFailed for anything else.
    """
    if hasattr(image, "getbands"):  # PIL
        grey = channels == 1 or (channels is None and image.mode in ("1", "L"))
        tensor: torch.Tensor = functional.pil_to_tensor(image.convert("L" if grey else "RGB"))
        return tensor
    if isinstance(image, np.ndarray):
        image = torch.from_numpy(np.array(image))  # a copy: a map of a file cannot be written, which torch warns about
    if not isinstance(image, torch.Tensor) or image.dtype != torch.uint8 or image.ndim not in (2, 3):
        kind = f"{image.dtype} {tuple(image.shape)}" if isinstance(image, torch.Tensor) else type(image).__name__
        raise UserCodeFailed(
            f"{name}: an image is {kind}; it must be a PIL image or uint8 of shape (C, H, W) or (H, W) "
            "(images are normalised while training)"
        )
    return image[None] if image.ndim == 2 else image


class Examples(torch.utils.data.Dataset[Loaded]):
    """One half of a set as DataLoader sees it: an index is a whole item of the plan, an element a whole minibatch.

    Only the spec travels to a loader process; the source is opened there at the first minibatch.
    """

    def __init__(self, data: DataSpec, source: Source | None, training: bool, augmentation: Augmentation) -> None:
        self.training = training
        self._data = data
        self._source = source
        self._augmentation = augmentation
        self._channels = int(self.first().shape[0]) if source is not None else 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_source": None}

    def __len__(self) -> int:
        source = self._opened()
        if isinstance(source, Arrays):
            return len(source.train_labels if self.training else source.test_labels)
        return len(source.train if self.training else source.test)

    def first(self) -> torch.Tensor:
        """The first image, uint8 (C, h, w)."""
        return image_tensor(self._read(0)[0], self._data.name)

    def __getitem__(self, item: tuple[int, Int64Array]) -> Loaded:
        epoch, examples = item
        images, labels = zip(*[self._example(int(i)) for i in examples], strict=True)
        if self._augmentation.side == 0 and len({image.shape for image in images}) > 1:
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
        label = int(label)
        num_classes = self._opened().num_classes
        if not 0 <= label < num_classes:
            raise UserCodeFailed(f"{self._data.name}: the label of example {i} is {label}, not in 0..{num_classes - 1}")
        return image_tensor(image, self._data.name, self._channels), label

    def _read(self, i: int) -> tuple[Any, Any]:
        """Image and label as the source has them; what a user's dataset raises is told as the user's."""
        source = self._opened()
        if isinstance(source, Arrays):
            if self.training:
                return source.train_images[i], source.train_labels[i]
            return source.test_images[i], source.test_labels[i]
        try:
            image, label = (source.train if self.training else source.test)[i]
        except Exception as error:
            if not usercode.is_user_name(self._data.name):
                raise
            raise usercode.failed(f"{self._data.name}, example {i},", error) from error
        return image, label

    def _opened(self) -> Source:
        if self._source is None:
            self._source = read_source(self._data.model_copy(update={"download": False}))  # the parent has fetched it
        return self._source


class _Loader:
    """DataLoader processes that outlive a plan; a new plan throws away what the last one has computed ahead."""

    def __init__(self, examples: Examples, processes: int) -> None:
        self._plan = _PlanSampler()
        options: dict[str, Any] = {}
        if processes:
            # never fork: the calling process has threads (Ray's and torch's), whose locks a fork would copy
            options = {"multiprocessing_context": "spawn", "persistent_workers": True, "prefetch_factor": PREFETCH}
        self._loader: DataLoader[Loaded] | None = DataLoader(
            examples,
            sampler=self._plan,  # its items are minibatches, not numbers
            batch_size=None,
            num_workers=processes,
            generator=torch.Generator().manual_seed(random.getrandbits(32)),
            **options,
        )
        self._running: Iterator[Loaded] | None = None

    def run(self, plan: Plan) -> Iterator[Loaded]:
        """The minibatches of a plan, in its order. Ends early after `close()` or when another plan is run."""
        assert self._loader is not None, "a minibatch was asked of a dataset after close()"
        self._plan.items = plan
        running = self._running = iter(self._loader)
        number = self._plan.number = self._plan.number + 1
        del running
        while self._running is not None and self._plan.number == number:
            try:
                loaded = next(self._running)
            except StopIteration:
                return
            yield loaded

    def close(self) -> None:
        """Ends the processes: the loader and its iterator have no other owner, and join them when they go."""
        self._loader = None
        self._running = None
        self._plan.items = ()


class _PlanSampler(torch.utils.data.Sampler[Any]):
    """Hands out the items of the plan in force."""

    def __init__(self) -> None:
        self.items: Iterable[Any] = ()
        self.number = 0

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)
