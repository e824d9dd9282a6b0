"""Map-style datasets whose examples are anything: tensors, dicts and tuples of them, nested, of one size or of many."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from trainers.data.batches import Data, mapped
from trainers.data.facts import DataFacts
from trainers.errors import UserCodeFailed

TRIED = 100
"""Examples of which one must be readable, that it is known what they look like."""


@dataclass(frozen=True, eq=False)
class ObjectSource:
    """Two map-style datasets, read example by example and given to the task as they are."""

    train: Any
    test: Any
    facts: DataFacts
    num_validation: int = 0
    """How many of the test examples, the first ones, are the validation set."""


def facts_of(example: Any, dataset: Any) -> DataFacts:
    """What a model has to fit, by an example of the training set and by the set's attributes `classes` and
    `vocabulary`, numbers or lists."""
    classes, vocabulary = (count_of(getattr(dataset, name, 0)) for name in ("classes", "vocabulary"))
    leaves = [shape for _, shape in _shapes(example)]
    inputs = (leaves[0] if leaves else ()) or (1,)
    outputs = 0
    if not classes and not vocabulary and _is_pair(example) and not is_label(example[1]):
        target = [shape for _, shape in _shapes(example[1])]
        outputs = int(np.prod(target[0])) if len(target) == 1 else 0
    return DataFacts(inputs, classes=classes, outputs=outputs, vocabulary=vocabulary, padded=bool(vocabulary))


def stacked(examples: Sequence[Any]) -> Data:
    """The default of a task: torch's `default_collate`, with numbers as torch's losses take them, float32 and int64."""
    return mapped(default_collate(list(examples)), _usual)


def check_example(example: Any, classes: int) -> None:
    """Raises ValueError where a number is not finite, or the label of a pair is none of so many classes."""
    for path, leaf in leaves_of(example):
        if not _is_finite(leaf):
            raise ValueError(f"{path or 'it'} holds a number that is not finite")
    if classes and _is_pair(example) and is_label(example[1]) and not 0 <= int(example[1]) < classes:
        raise ValueError(f"its label is {int(example[1])}, not in 0..{classes - 1}")


Form = list[tuple[str, tuple[int, ...]]]


def form_of(example: Any) -> Form:
    """The shapes of what an example is made of, by their places: those of all examples must be one to be stacked."""
    return list(_shapes(example))


def is_label(value: Any) -> bool:
    """Whether it is one whole number."""
    if isinstance(value, Tensor | np.ndarray):
        return value.ndim == 0 and not _is_float(value) and value.dtype not in (torch.bool, np.dtype(bool))
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_image_with_label(example: Any) -> bool:
    """Whether it is what image classification knows: a photograph, or pixels of uint8, with a label."""
    if not _is_pair(example) or not is_label(example[1]):
        return False
    image = example[0]
    is_pixels = isinstance(image, Tensor | np.ndarray) and image.dtype in (torch.uint8, np.dtype(np.uint8))
    return hasattr(image, "getbands") or (is_pixels and image.ndim in (2, 3))


def leaves_of(example: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """All that is no dict, tuple or list, with its place, such as `[1].boxes`."""
    if isinstance(example, Mapping):
        for name, part in example.items():
            yield from leaves_of(part, f"{path}.{name}" if path else str(name))
    elif isinstance(example, tuple | list):
        for place, part in enumerate(example):
            yield from leaves_of(part, f"{path}[{place}]")
    else:
        yield path, example


def _shapes(example: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    for path, leaf in leaves_of(example):
        if isinstance(leaf, Tensor | np.ndarray):
            yield path, tuple(leaf.shape)
        elif hasattr(leaf, "getbands"):  # a photograph of Pillow's
            yield path, (len(leaf.getbands()), leaf.height, leaf.width)
        elif isinstance(leaf, int | float | np.number):
            yield path, ()


def _is_pair(example: Any) -> bool:
    return isinstance(example, tuple | list) and len(example) == 2


def _is_float(value: "Tensor | np.ndarray[Any, Any]") -> bool:
    return value.is_floating_point() if isinstance(value, Tensor) else value.dtype.kind == "f"


def _is_finite(leaf: Any) -> bool:
    if isinstance(leaf, Tensor | np.ndarray):
        return not _is_float(leaf) or bool((torch if isinstance(leaf, Tensor) else np).isfinite(leaf).all())
    return not isinstance(leaf, float | np.floating) or bool(np.isfinite(leaf))


def _usual(tensor: Tensor) -> Tensor:
    if tensor.dtype == torch.float64:
        return tensor.float()
    return tensor.long() if tensor.dtype in (torch.int8, torch.int16, torch.int32) else tensor


def count_of(value: Any) -> int:
    """How many classes or tokens an attribute means: it is that number, or a list of their names."""
    try:
        return int(value) if isinstance(value, int | np.integer) else len(value)
    except TypeError as error:
        kind = type(value).__name__
        raise UserCodeFailed(
            f"classes or vocabulary of the training set is a {kind}; it must be a number or a list"
        ) from error
