"""Photographs in files: small sets are decoded once a node, by threads, into the files that its processes map."""

import bisect
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image
from torch.utils.data import ConcatDataset, Subset

from trainers import user_code
from trainers.data.config import DataSpec
from trainers.data.draws import Int64Array
from trainers.data.examples import Arrays, Source, StreamedSource, UInt8Array, image_tensor
from trainers.data.images.augmentation import Augmentation
from trainers.data.node_lock import Note
from trainers.data.reading import OPENING
from trainers.data.records.objects import TRIED, ObjectSource
from trainers.errors import DataLost, MillraceError, RunFailed

DEFAULT_SIDE = 224
"""Side in pixels to which images of different sizes are resized if the spec gives none, unless they are smaller."""

CHUNK = 32
"""Photographs that a thread decodes at a time."""

SAMPLE = 200
"""Photographs whose sizes tell whether it is worth while to look at those of all."""

NOTE_EVERY_S = 1.0


T = TypeVar("T")


def side_of(data: DataSpec, source: Source) -> int:
    """Side in pixels of the square images that the model takes; 0 if all images have one size and keep it."""
    given = data.random_resized_crop or data.resize
    if given or isinstance(source, Arrays) or source.one_size:
        return given
    image, _ = first_example(data, source, training=True)
    _, height, width = image_tensor(image, data.name).shape
    return min(DEFAULT_SIDE, height, width)


def read_example(data: DataSpec, source: StreamedSource | ObjectSource, i: int, training: bool) -> Any:
    """An example of one half: an image and its label, or whatever the user's objects are.

    Raises:
        UserCodeFailed: The user's dataset raises.
        RunFailed: The file cannot be read.
        DataLost: It lay in the object store, which has lost it.
    """
    examples, named = source.train if training else source.test, example_name(i, training, source.num_validation)
    try:
        with OPENING.reads(i):
            return examples[i]
    except DataLost:  # no fault of the example's
        raise
    except Exception as error:
        if user_code.is_user_name(data.name):
            raise user_code.failed(f"{data.name}, {named},", error) from error
        path = f" ({_path_of(examples, i)})" if are_files(examples) else ""
        raise RunFailed(f"{data.name}: {named}{path} cannot be read: {error}") from error


def example_name(i: int, training: bool, num_validation: int) -> str:
    """Example i of the training set, or of those that are held out, of which so many are the validation set."""
    if training:
        return f"training example {i}"
    return f"validation example {i}" if i < num_validation else f"test example {i - num_validation}"


def first_example(data: DataSpec, source: StreamedSource | ObjectSource, training: bool) -> Any:
    """The first example of a half; where examples may be skipped, the first that can be read.

    Raises as `read_example`.
    """
    last = min(TRIED, len(source.train if training else source.test)) - 1 if data.on_error == "skip" else 0
    for i in range(last):
        with suppress(MillraceError):
            return read_example(data, source, i, training)
    return read_example(data, source, last, training)


def labels_of(examples: Any) -> Int64Array | None:
    """The labels of a map-style dataset, (N,), by its attribute `targets`, which torchvision's sets have; None where
    there is none."""
    if isinstance(examples, Subset):
        found = labels_of(examples.dataset)
        return None if found is None else found[np.asarray(examples.indices, dtype=np.int64)]
    targets = np.asarray(getattr(examples, "targets", ()))
    return targets.astype(np.int64) if targets.ndim == 1 and targets.dtype.kind in "iu" and len(targets) else None


def decode_into(folder: Path, data: DataSpec, source: StreamedSource, note: Note) -> dict[str, tuple[int, ...]] | None:
    """Decode all photographs of a set into files below `folder`, and their labels.

    Those of different sizes that are cropped at random lie one after the other, with their shapes beside them; all
    others lie in one array. Without `random_resized_crop` they are resized, so that only what the model sees is kept.

    Returns:
        The shape of each file by its name; None, and nothing is written, for a set that is not of files or that needs
        more than `data.memory_limit_bytes` or than there is room for.

    Raises:
        RunFailed: A file cannot be read; names it.
    """
    if data.on_error == "skip":
        return None  # each example is told when it is used
    if user_code.is_user_name(data.name) or not (are_files(source.train) and are_files(source.test)):
        return None  # somebody else's objects need not bear several threads
    side = 0 if data.random_resized_crop else side_of(data, source)
    halves = [_Half(data, source, side, training) for training in (True, False)]
    room = min(data.memory_limit_bytes, int(_free_bytes(folder) / 1.02))
    if sum(half.sampled_bytes() for half in halves) > room:
        return None
    for half in halves:
        half.measure()
    if sum(half.num_bytes for half in halves) > room:
        return None
    progress = _Progress(note, sum(len(half.shapes) for half in halves))
    return {name: shape for half in halves for name, shape in half.decode(folder, progress).items()}


class _Half:
    """The training or the test half of a set that is being decoded."""

    def __init__(self, data: DataSpec, source: StreamedSource, side: int, training: bool) -> None:
        self.data, self.source, self.training = data, source, training
        self.examples = source.train if training else source.test
        self.augmentation = Augmentation(seed=0, side=side)
        self.shapes: Int64Array = np.empty((0, 3), dtype=np.int64)
        """(N, 3): C, H, W of each, as they are kept."""

    @property
    def num_bytes(self) -> int:
        return int(self.shapes.prod(axis=1).sum())

    def sampled_bytes(self) -> int:
        """About how much the half takes, by the sizes of some, evenly through the half."""
        num = len(self.examples)
        sampled = [self._shape(i) for i in np.linspace(0, num - 1, min(num, SAMPLE)).astype(int).tolist()]
        return int(np.prod(sampled, axis=1).mean() * num)

    def measure(self) -> None:
        """Look at the size of every one."""
        self.shapes = np.array(_in_threads(self._shape, len(self.examples)), dtype=np.int64)

    def decode(self, folder: Path, progress: "_Progress") -> dict[str, tuple[int, ...]]:
        """Write images and labels, and the shapes where these differ."""
        half, num = "train" if self.training else "test", len(self.shapes)
        path = folder / f"{half}_images"
        with open(path, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, self.num_bytes)  # or a full disk would kill whoever writes to the map
        pixels: UInt8Array = np.memmap(path, np.uint8, "r+")
        ends = self.shapes.prod(axis=1).cumsum()

        def decode_one(i: int) -> int:
            image, label = read_example(self.data, self.source, i, self.training)
            tensor = self.augmentation.evaluate([image_tensor(image, self.data.name, int(self.shapes[i, 0]))])[0]
            pixels[ends[i] - tensor.numel() : ends[i]] = tensor.numpy().reshape(-1)
            progress.advance()
            return int(label)

        labels = np.array(_in_threads(decode_one, num), dtype=np.int64)
        labels.tofile(folder / f"{half}_labels")
        shapes: dict[str, tuple[int, ...]] = {f"{half}_labels": (num,)}
        if (self.shapes == self.shapes[0]).all():
            return shapes | {f"{half}_images": (num, *self.shapes[0].tolist())}
        self.shapes.tofile(folder / f"{half}_shapes")
        return shapes | {f"{half}_images": (self.num_bytes,), f"{half}_shapes": (num, 3)}

    def _shape(self, i: int) -> tuple[int, int, int]:
        if side := self.augmentation.side:
            return 3, side, side  # torchvision's datasets make all of them RGB
        path = _path_of(self.examples, i)
        try:
            with Image.open(path) as photograph:  # its head only
                return 3, photograph.height, photograph.width
        except OSError as error:
            named = example_name(i, self.training, self.source.num_validation)
            raise RunFailed(f"{self.data.name}: {named} ({path}) cannot be read: {error}") from error


@dataclass
class _Progress:
    """How many photographs threads have decoded, told about once a second."""

    note: Note
    total: int
    done: int = 0
    next_s: float = 0.0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def advance(self) -> None:
        with self._lock:
            self.done += 1
            if (now := time.monotonic()) > self.next_s:
                self.next_s = now + NOTE_EVERY_S
                self.note(f"decodes photographs into memory, {self.done:,} of {self.total:,}")


def _in_threads(function: Callable[[int], T], num: int) -> list[T]:
    """function(0) to function(num - 1); Pillow's decoders and torch's resizing let other threads compute."""

    def chunk(start: int) -> list[T]:
        return [function(i) for i in range(start, min(start + CHUNK, num))]

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        try:
            return [each for part in threads.map(chunk, range(0, num, CHUNK)) for each in part]
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)  # what is left is of no use
            raise


def _free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _unwrapped(examples: Any, i: int) -> tuple[Any, int]:
    """The dataset below any subsets and joined ones, and the index there."""
    while isinstance(examples, Subset | ConcatDataset):
        if isinstance(examples, Subset):
            examples, i = examples.dataset, examples.indices[i]
        else:
            place = bisect.bisect_right(examples.cumulative_sizes, i)
            examples, i = examples.datasets[place], i - (examples.cumulative_sizes[place - 1] if place else 0)
    return examples, i


def are_files(examples: Any) -> bool:
    """Whether the examples of a map-style dataset lie in folders of files, as torchvision's do."""
    return hasattr(_unwrapped(examples, 0)[0], "samples")


def _path_of(examples: Any, i: int) -> str:
    dataset, i = _unwrapped(examples, i)
    return str(dataset.samples[i][0])
