"""The two forms of a source, arrays and streams, and the checks that both have to pass."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from trainers.data.batches import Skipped
from trainers.data.draws import Int64Array
from trainers.errors import UserCodeFailed

UInt8Array = npt.NDArray[np.uint8]
FULL_SCALE = 255


@dataclass(frozen=True)
class Normalisation:
    """Mean and standard deviation of a training set, per channel, in units of full scale."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """(B, C, H, W): uint8 in, float32 of zero mean and unit variance out. What torchvision's `to_dtype` and
        `normalize` compute, bit for bit, without the import of torchvision, which takes as long as torch's."""
        mean, std = (_on_device(values, images.device) for values in (self.mean, self.std))
        return images.to(torch.float32).mul_(1 / FULL_SCALE).sub_(mean).div_(std)


@cache
def _on_device(values: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """(C, 1, 1). Kept: on a GPU each call would wait for the copy."""
    return torch.tensor(values, device=device).view(-1, 1, 1)


@dataclass(frozen=True, eq=False)
class Ragged:
    """Images of different sizes, one after the other."""

    pixels: UInt8Array  # (all bytes,)
    shapes: Int64Array  # (N, 3): C, H, W

    def take(self, examples: Int64Array) -> list[torch.Tensor]:
        """Copies of these images, each (C, H, W)."""
        shapes, ends = self.shapes[examples].tolist(), self._ends[examples].tolist()
        return [
            torch.from_numpy(self.pixels[end - channels * height * width : end].copy()).view(channels, height, width)
            for (channels, height, width), end in zip(shapes, ends, strict=True)
        ]

    @property
    def nbytes(self) -> int:
        return self.pixels.nbytes

    @cached_property
    def _ends(self) -> Int64Array:
        ends: Int64Array = self.shapes.prod(axis=1).cumsum()
        return ends


@dataclass(frozen=True, eq=False)
class Arrays:
    """A dataset held in memory."""

    train_images: UInt8Array | Ragged  # (N, C, H, W)
    train_labels: Int64Array  # (N,)
    test_images: UInt8Array | Ragged
    test_labels: Int64Array
    num_classes: int
    normalisation: Normalisation
    num_validation: int = 0
    """How many of the test images, the first ones, are the validation set."""
    skipped: tuple[Skipped, ...] = ()
    """Training rows that were left out, and what is wrong with each."""
    told: tuple[str, ...] = ()
    """What a person should know of it, in sentences without their ends."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all images as uint8."""
        return self.train_images.nbytes + self.test_images.nbytes

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """C, H, W of all images; of the first where they differ."""
        images = self.train_images
        channels, height, width = images.shapes[0].tolist() if isinstance(images, Ragged) else images.shape[1:]
        return channels, height, width


@dataclass(frozen=True, eq=False)
class StreamedSource:
    """Two torch map-style datasets of (image, label), read example by example."""

    train: Any
    test: Any
    num_classes: int
    normalisation: Normalisation
    one_size: bool
    """Whether all images have the same size, so that they need no resizing."""
    num_validation: int = 0
    """How many of the test examples, the first ones, are the validation set."""


Source = Arrays | StreamedSource


def checked_labels(labels: Any, num_classes: int | None, name: str) -> Int64Array:
    """(N,) int64, each in 0..num_classes - 1 (None: not negative). Raises UserCodeFailed otherwise."""
    array = np.asarray(labels)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise UserCodeFailed(f"{name}: labels are {array.dtype} of shape {array.shape}; they must be integers, (N,)")
    array = array.astype(np.int64)
    highest = array.max(initial=0) if num_classes is None else num_classes - 1
    if len(array) and (array.min() < 0 or array.max() > highest):
        raise UserCodeFailed(f"{name}: labels run from {array.min()} to {array.max()}; they must be in 0..{highest}")
    return array


def image_tensor(image: Any, name: str, channels: int | None = None) -> torch.Tensor:
    """uint8 (C, h, w) from a PIL image, a tensor or an array (C, h, w) or (h, w).

    channels: a PIL image is converted to that many channels (1 or 3); None: grey stays grey, all else becomes RGB.
    Raises UserCodeFailed for anything else.
    """
    if hasattr(image, "getbands"):  # PIL
        from torchvision.transforms.v2 import functional

        grey = channels == 1 or (channels is None and image.mode in ("1", "L"))
        photograph: torch.Tensor = functional.pil_to_tensor(image.convert("L" if grey else "RGB"))
        return photograph
    if isinstance(image, np.ndarray):
        image = torch.from_numpy(
            np.array(image)
        )  # a copy, because torch warns about arrays that cannot be written, such as a read-only map
    if not isinstance(image, torch.Tensor) or image.dtype != torch.uint8 or image.ndim not in (2, 3):
        kind = f"{image.dtype} {tuple(image.shape)}" if isinstance(image, torch.Tensor) else type(image).__name__
        raise UserCodeFailed(
            f"{name}: an image is {kind}; it must be a PIL image or uint8 of shape (C, H, W) or (H, W) "
            "(images are normalised while training)"
        )
    return image[None] if image.ndim == 2 else image


def measured(images: UInt8Array) -> Normalisation:
    """Mean and standard deviation of each channel, from counts of pixel values, so that no float copy is made."""
    levels = np.arange(256) / 255
    means, deviations = [], []
    for channel in range(images.shape[1]):
        counts = np.zeros(256, dtype=np.int64)
        for part in _parts(images):
            counts += np.bincount(part[:, channel].ravel(), minlength=256)
        frequency = counts / counts.sum()
        mean = float((frequency * levels).sum())
        means.append(mean)
        deviations.append(float(np.sqrt((frequency * (levels - mean) ** 2).sum())) or 1.0)
    return Normalisation(tuple(means), tuple(deviations))


def _parts(images: UInt8Array, size: int = 4096) -> Iterator[UInt8Array]:
    for start in range(0, len(images), size):
        yield images[start : start + size]
