"""A dataset of the user's own: checks what a `module:function` returned, and explains what is wrong with it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset

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
from trainers.data.records.bad_rows import BadRows
from trainers.data.records.columns import Columns, columns_of
from trainers.data.records.objects import TRIED, ObjectSource, count_of, facts_of, is_image_with_label
from trainers.errors import UserCodeFailed

IMAGENET = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
GREY = Normalisation((0.449,), (0.226,))
"""ImageNet's statistics averaged over its channels, for streamed images that are not RGB."""


def read_user(data: DataSpec) -> Source | ObjectSource | Columns:
    """The source that the user's function returns for `root`: four arrays, two map-style datasets, or two tuples or
    dicts of arrays; with a validation set between training and test, six or three.

    Raises UserCodeFailed when it raises or returns something else.
    """
    returned = user_code.call(data.name, root=data.root)
    parts: Sequence[Any] = returned if isinstance(returned, tuple | list) else ()
    if len(parts) in (3, 6):
        return _with_validation(data, parts)
    if len(parts) == 4 and np.asarray(parts[0]).dtype == np.uint8 and np.ndim(parts[1]) == 1:
        return _arrays(data, parts)
    if len(parts) == 4:
        return columns_of(tuple(parts[:2]), tuple(parts[2:]), data.name, most=data.most_skipped)
    if len(parts) == 2 and all(isinstance(part, tuple | dict) for part in parts):
        return columns_of(parts[0], parts[1], data.name, most=data.most_skipped)
    if len(parts) == 2:
        _check_rows(data.name, *parts)
    if len(parts) == 2 and all(hasattr(part, "__getitem__") and hasattr(part, "__len__") for part in parts):
        return streams(data.name, *parts, skips=data.on_error == "skip")
    raise _something_else(data.name, returned)


def _with_validation(data: DataSpec, parts: Sequence[Any]) -> Source | ObjectSource | Columns:
    """The source of three sets, of which the second is for validation."""
    name = data.name
    if len(parts) == 6:
        validation, test = _arrays(data, parts[:4], "validation"), _arrays(data, [*parts[:2], *parts[4:]])
        images = np.concatenate([validation.test_images, test.test_images])
        labels = np.concatenate([validation.test_labels, test.test_labels])
        num_validation, told = len(validation.test_labels), (*validation.told, *test.told)
        return replace(test, test_images=images, test_labels=labels, num_validation=num_validation, told=told)
    if all(isinstance(part, tuple | dict) for part in parts):
        most = data.most_skipped
        first = columns_of(parts[0], parts[1], name, "validation", most)
        last = columns_of(parts[0], parts[2], name, most=most)
        joined = {column: np.concatenate([array, last.test[column]]) for column, array in first.test.items()}
        num_validation, told = len(next(iter(first.test.values()))), (*first.told, *last.told)
        return replace(last, test=joined, num_validation=num_validation, told=told)
    if all(hasattr(part, "__getitem__") and hasattr(part, "__len__") for part in parts):
        return streams(name, *parts, skips=data.on_error == "skip")
    raise _something_else(name, parts)


def _check_rows(name: str, train: Any, test: Any) -> None:
    """Raises UserCodeFailed where two arrays cannot be two sets, because their rows differ: they are inputs and targets
    of one."""
    arrays = [part for part in (train, test) if isinstance(part, torch.Tensor | np.ndarray)]
    rows = [tuple(array.shape[1:]) for array in arrays]
    if len(set(rows)) > 1:
        raise UserCodeFailed(
            f"{name} returned arrays with rows of {rows[0]} and of {rows[1]}; it must return two sets, (train, test), "
            "each of which is (x, y)"
        )


def _something_else(name: str, returned: Any) -> UserCodeFailed:
    return UserCodeFailed(
        f"{name} returned {type(returned).__name__}; it must return (train_images, train_labels, test_images, "
        "test_labels), two tuples or dicts of arrays, or two datasets with __getitem__ and __len__; or with a "
        "validation set before the test set six arrays, three tuples or dicts, or three datasets"
    )


def _arrays(data: DataSpec, parts: Sequence[Any], other: str = "test") -> Arrays:
    """Four arrays, checked; the classes are 0 to the largest training label. other: What the second half is called."""
    name = data.name
    train_images, test_images = _images(parts[0], name), _images(parts[2], name)
    _both_needed(name, len(train_images), len(test_images))
    if train_images.shape[1:] != test_images.shape[1:]:
        shapes = f"{train_images.shape[1:]}, test images {test_images.shape[1:]}"
        raise UserCodeFailed(f"{name}: training images are {shapes}; both must have one shape")
    if len(parts[1]) != len(train_images) or len(parts[3]) != len(test_images):
        raise UserCodeFailed(f"{name}: there must be one label for each image")
    bad, not_seen = BadRows(len(train_images), data.max_skipped), BadRows(len(test_images), len(test_images))
    train_labels, test_labels = np.asarray(parts[1]), np.asarray(parts[3])
    num_classes = int(train_labels.max(initial=0)) + 1
    if data.on_error == "skip":
        train_images, train_labels = _sound(train_images, train_labels, num_classes, f"{name}, training", bad)
        test_images, test_labels = _sound(test_images, test_labels, num_classes, f"{name}, {other}", not_seen)
        _both_needed(name, len(train_images), len(test_images))
    train_labels = checked_labels(train_labels, None, name)
    test_labels = checked_labels(test_labels, num_classes, name)
    told = tuple(f"{why}, so no evaluation has it" for _, why in not_seen.skipped)
    found = train_images, train_labels, test_images, test_labels, num_classes, measured(train_images)
    return Arrays(*found, skipped=bad.skipped, told=told)


def _sound(images: UInt8Array, labels: Any, num_classes: int, what: str, bad: BadRows) -> tuple[UInt8Array, Any]:
    """The images whose labels are classes, with these."""
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes)).tolist()
    bad.add(wrong, lambda row: f"{what} image {row} has the label {labels[row]}, not in 0..{num_classes - 1}")
    return (images[bad.kept], labels[bad.kept]) if wrong else (images, labels)


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


def streams(name: str, train: Any, *held_out: Any, skips: bool = False) -> StreamedSource | ObjectSource:
    """Map-style datasets, for training, maybe for validation, and for the test: of images with labels, or of anything
    else."""
    for part in held_out:
        _both_needed(name, len(train), len(part))
    test = held_out[0] if len(held_out) == 1 else ConcatDataset(held_out)
    num_validation = len(test) - len(held_out[-1])
    with kept_generators():
        example = _first(name, train, skips)
    if is_image_with_label(example):
        return replace(_labelled_images(name, example[0], train, test), num_validation=num_validation)
    return ObjectSource(train, test, facts_of(example, train), num_validation)


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
