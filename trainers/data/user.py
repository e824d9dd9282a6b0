"""A dataset of the user's own: checks what a `module:function` returned, and explains what is wrong with it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from trainers import user_code
from trainers.data.config import DataSpec
from trainers.data.examples import (
    Arrays,
    Normalisation,
    Source,
    StreamedSource,
    UInt8Array,
    checked_labels,
    image_tensor,
    measured,
)
from trainers.data.loading.generators import kept_generators
from trainers.data.reading import OPENING
from trainers.data.records.columns import Columns, columns_of
from trainers.data.records.objects import TRIED, ObjectSource, count_of, facts_of, is_image_with_label
from trainers.errors import UserCodeFailed

IMAGENET = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
GREY = Normalisation((0.449,), (0.226,))
"""ImageNet's statistics averaged over its channels, for streamed images that are not RGB."""


def read_user(data: DataSpec) -> Source | ObjectSource | Columns:
    """The source that the user's function returns for `root`: four arrays, two map-style datasets, or two tuples or
    dicts of arrays.

    Raises UserCodeFailed when it raises or returns something else.
    """
    returned = user_code.call(data.name, root=data.root)
    parts: Sequence[Any] = returned if isinstance(returned, tuple | list) else ()
    if len(parts) == 4 and np.asarray(parts[0]).dtype == np.uint8 and np.ndim(parts[1]) == 1:
        return _arrays(data.name, parts)
    if len(parts) == 4:
        return columns_of(tuple(parts[:2]), tuple(parts[2:]), data.name)
    if len(parts) == 2 and all(isinstance(part, tuple | dict) for part in parts):
        return columns_of(parts[0], parts[1], data.name)
    if len(parts) == 2 and all(hasattr(part, "__getitem__") and hasattr(part, "__len__") for part in parts):
        return streams(data.name, *parts, skips=data.on_error == "skip")
    raise UserCodeFailed(
        f"{data.name} returned {type(returned).__name__}; it must return (train_images, train_labels, test_images, "
        "test_labels), two tuples or dicts of arrays, or two datasets with __getitem__ and __len__"
    )


def _arrays(name: str, parts: Sequence[Any]) -> Arrays:
    """Four arrays, checked; the classes are 0 to the largest training label."""
    train_images, test_images = _images(parts[0], name), _images(parts[2], name)
    _both_needed(name, len(train_images), len(test_images))
    if train_images.shape[1:] != test_images.shape[1:]:
        shapes = f"{train_images.shape[1:]}, test images {test_images.shape[1:]}"
        raise UserCodeFailed(f"{name}: training images are {shapes}; both must have one shape")
    train_labels = checked_labels(parts[1], None, name)
    num_classes = int(train_labels.max(initial=0)) + 1
    test_labels = checked_labels(parts[3], num_classes, name)
    if len(train_labels) != len(train_images) or len(test_labels) != len(test_images):
        raise UserCodeFailed(f"{name}: there must be one label for each image")
    return Arrays(train_images, train_labels, test_images, test_labels, num_classes, measured(train_images))


def _first(name: str, train: Any, skips: bool) -> Any:
    """The first example, or the first that can be read."""
    last = min(TRIED, len(train)) - 1 if skips else 0
    for i in range(last + 1):
        try:
            with OPENING.reads(i):
                return train[i]
        except Exception as error:
            if i == last:
                raise user_code.failed(f"{name}, example {i},", error) from error
    raise AssertionError


def streams(name: str, train: Any, test: Any, *, skips: bool = False) -> StreamedSource | ObjectSource:
    """Two map-style datasets: of images with labels, or of anything else."""
    _both_needed(name, len(train), len(test))
    with kept_generators():
        example = _first(name, train, skips)
    if is_image_with_label(example):
        return _labelled_images(name, example[0], train, test)
    return ObjectSource(train, test, facts_of(example, train))


def _labelled_images(name: str, image: Any, train: Any, test: Any) -> StreamedSource:
    """Two map-style datasets of images with labels, of which `image` is the first; the number of classes comes from
    `classes` or `targets`.

    PIL images are assumed to differ in size; tensors and arrays are assumed to have one size.
    """
    if hasattr(train, "classes"):
        num_classes = count_of(train.classes)
    elif hasattr(train, "targets"):
        num_classes = int(max(train.targets)) + 1
    else:
        raise UserCodeFailed(f"{name}: give the training set an attribute `classes` (names) or `targets` (labels)")
    channels = image_tensor(image, name).shape[0]
    grey = Normalisation(GREY.mean * channels, GREY.std * channels)
    one_size = isinstance(image, torch.Tensor | np.ndarray)
    return StreamedSource(train, test, num_classes, IMAGENET if channels == 3 else grey, one_size)


def _both_needed(name: str, num_train: int, num_test: int) -> None:
    if not num_train or not num_test:
        raise UserCodeFailed(f"{name}: {num_train} training and {num_test} test examples; both are needed")


def _images(images: Any, name: str) -> UInt8Array:
    """(N, C, H, W) uint8, from (N, C, H, W) or (N, H, W)."""
    array = np.asarray(images)
    if array.dtype != np.uint8 or array.ndim not in (3, 4):
        raise UserCodeFailed(
            f"{name}: images are {array.dtype} of shape {array.shape}; they must be uint8 of shape (N, C, H, W) or "
            "(N, H, W) (they are normalised while training)"
        )
    array = array[:, None] if array.ndim == 3 else array
    if array.shape[1] > 4 and array.shape[3] in (1, 3):
        raise UserCodeFailed(f"{name}: images of shape {array.shape} have their channels last; transpose(0, 3, 1, 2)")
    return array
