"""Datasets as a user would write them, for the tests of `module:function`."""

from collections.abc import Callable
from typing import Any

import numpy as np

Four = tuple[Any, Any, Any, Any]


def four_arrays(root: str) -> Four:
    images = np.random.default_rng(0).integers(0, 256, (20, 3, 9, 10), dtype=np.uint8)
    labels = np.arange(20) % 4
    return images[:12], labels[:12], images[12:], labels[12:].tolist()


def grey_arrays(root: str) -> Four:
    images = np.full((6, 5, 5), 51, dtype=np.uint8)
    return images[:4], [0, 1, 0, 1], images[4:], [0, 1]


class Map:
    """A map-style dataset of (uint8 array, label) in which the label is written into the pixels."""

    classes = ("zero", "one", "two")

    def __init__(self, count: int, wrong_label: bool = False, broken: bool = False) -> None:
        self.count, self.wrong_label, self.broken = count, wrong_label, broken
        self.not_picklable: Callable[[int], int] = lambda i: i % 3

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        if self.broken and i:
            raise ValueError(f"the sensor was off at {i}")
        label = self.not_picklable(i)
        return np.full((3, 8, 8), 10 * label, dtype=np.uint8), 3 if self.wrong_label and i == 2 else label


def maps(root: str) -> tuple[Map, Map]:
    return Map(30), Map(9)


def wrong_label(root: str) -> tuple[Map, Map]:
    return Map(30, wrong_label=True), Map(9)


def broken_map(root: str) -> tuple[Map, Map]:
    return Map(30, broken=True), Map(9)


def raises(root: str) -> Four:
    def inner() -> Four:
        raise KeyError(f"no column in {root}")

    return inner()


def returns_nothing(root: str) -> None:
    return None


def vectors(root: str) -> Four:
    """Numbers with labels; the third row of the training half holds a NaN where `root` says so."""
    numbers = np.arange(12, dtype=np.float64).reshape(4, 3)
    broken = numbers.copy()
    broken[2, 1] = np.nan if root == "broken" else 0
    labels = [0, 1, 5, 1] if root == "unseen" else [0, 1, 0, 1]
    return broken, [0, 1, 0, 1], numbers, labels


def named(root: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Columns of several types, by name."""
    half = {"words": np.arange(10).reshape(5, 2), "counts": np.ones(5, dtype=bool), "size": np.linspace(0, 1, 5)}
    other = {"ragged": {**half, "size": np.ones(4)}, "other": {**half, "size": np.ones((5, 2))}}.get(root, half)
    return half, other


def channels_last(root: str) -> Four:
    images = np.zeros((4, 32, 32, 3), dtype=np.uint8)
    return images, [0, 1, 0, 1], images, [0, 1, 0, 1]


def negative_labels(root: str) -> Four:
    images = np.zeros((4, 5, 5), dtype=np.uint8)
    return images, [0, 1, -1, 1], images, [0, 1, 0, 1]


def unseen_class(root: str) -> Four:
    images = np.zeros((4, 5, 5), dtype=np.uint8)
    return images, [0, 1, 0, 1], images, [0, 1, 2, 1]


def no_classes(root: str) -> tuple[list[Any], list[Any]]:
    return [(np.zeros((3, 8, 8), np.uint8), 0)], [(np.zeros((3, 8, 8), np.uint8), 0)]


not_a_function = 3


def six_arrays(root: str) -> tuple[Any, ...]:
    images, labels, *_ = four_arrays(root)
    return images[:6], labels[:6], images[6:8], labels[6:8], images[8:], labels[8:]


def one_pair(root: str) -> tuple[Any, ...]:
    return np.zeros((12, 2), np.float32), np.arange(12) % 3


def three_pairs(root: str) -> tuple[Any, ...]:
    x, y = np.arange(24, dtype=np.float32).reshape(12, 2), np.arange(12) % 3
    return (x[:6], y[:6]), (x[6:8], y[6:8]), (x[8:], y[8:])


def three_maps(root: str) -> tuple[Map, Map, Map]:
    return Map(6), Map(2), Map(4, broken=root == "broken")


class Words(Map):
    """Of anything: no images."""

    def __getitem__(self, i: int) -> Any:
        image, label = super().__getitem__(i)
        return {"words": image[0, 0].astype(np.float32), "label": label}


def three_sets_of_words(root: str) -> tuple[Words, Words, Words]:
    return Words(6), Words(2), Words(4)


def words(root: str) -> tuple[Words, Words]:
    return Words(12), Words(4)


def bad_arrays(root: str) -> tuple[Any, ...]:
    """`images`: a negative label among 12, and a label of the test set that no training image has. Else numbers, of
    which training row 3 is not finite and the label of row 5 is negative."""
    if root == "images":
        images, labels, test_images, test_labels = four_arrays(root)
        return images, np.where(np.arange(12) == 4, -1, labels), test_images, [7, *test_labels[1:]]
    x, y = np.arange(24, dtype=np.float32).reshape(12, 2), np.arange(12) % 3
    x[3, 1], y[5] = np.nan, -2
    return (x[:8], y[:8]), (x[8:10], y[8:10]), (x[10:], np.array([9, 0]))
