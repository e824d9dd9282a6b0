"""Fashion-MNIST's garments and MNIST's digits as one set of 20 classes, and scenes that are composed of both.

Where no folder is needed, scikit-learn's digits stand for the garments, and the same upside down for the digits.
"""

from typing import Any

import numpy as np

from service.claims.experiments.images import Halves, Int64Array, UInt8Array, grey

SIDE, PICTURE, INK = 64, 28, 40
"""Pixels of a scene's side and of a picture's, and from which brightness on a pixel belongs to what is shown."""
CLASSES = 10
"""Of garments, and of digits."""


def garments_and_digits(root: str) -> Halves:
    """Garments, 0 to 9, and digits, 10 to 19, by turns, so that of any first 2 N images N are garments.

    Raises ValueError where `root` does not hold both sets.
    """
    return _by_turns(grey(root, "FashionMNIST"), grey(root, "MNIST"))


def two_kinds_of_digits(root: str = "") -> Halves:
    """Likewise those of scikit-learn, 28 x 28, and the same upside down."""
    from sklearn.datasets import load_digits

    found = load_digits()
    large = (found.images.astype(np.int64) * 255 // 16).astype(np.uint8).repeat(3, 1).repeat(3, 2)
    images, labels, cut = np.pad(large, ((0, 0), (2, 2), (2, 2))), found.target.astype(np.int64), 1_400
    upright = images[:cut], labels[:cut], images[cut:], labels[cut:]
    return _by_turns(upright, (images[:cut, ::-1], labels[:cut], images[cut:, ::-1], labels[cut:]))


class Scenes:
    """Examples for detection: a scene (1, 64, 64), and a dict of boxes, x1 y1 x2 y2, labels from 1 on, and masks."""

    classes = 2 * CLASSES + 1  # with the ground

    def __init__(self, images: UInt8Array, labels: Int64Array, count: int, seed: int) -> None:
        draw = np.random.RandomState(seed)  # its stream never changes, a Generator's may
        self.made = [_scene(images, labels, draw) for _ in range(count)]

    def __len__(self) -> int:
        return len(self.made)

    def __getitem__(self, i: int) -> tuple[UInt8Array, dict[str, Any]]:
        return self.made[i]


def scenes(root: str, train: int = 400, test: int = 100) -> tuple[Scenes, Scenes]:
    """Of garments and digits; a picture of one half is never in the other. Raises ValueError likewise."""
    return _halves(garments_and_digits(root), train, test)


def scenes_of_digits(root: str = "", train: int = 40, test: int = 10) -> tuple[Scenes, Scenes]:
    """Of scikit-learn's digits."""
    return _halves(two_kinds_of_digits(root), train, test)


def _by_turns(ours: Halves, theirs: Halves) -> Halves:
    """Two sets of ten classes as one of twenty, as many of each."""
    found: list[Any] = []
    halves: Any = zip(ours, theirs, (0, CLASSES, 0, CLASSES), strict=True)
    for first, second, added in halves:
        count = min(len(first), len(second))
        pairs = np.stack([first[:count], second[:count] + np.asarray(added, second.dtype)], 1)
        found.append(pairs.reshape(2 * count, *first.shape[1:]))
    images, labels, test_images, test_labels = found
    return images, labels, test_images, test_labels


def _halves(pictures: Halves, train: int, test: int) -> tuple[Scenes, Scenes]:
    images, labels, test_images, test_labels = pictures
    return Scenes(images, labels, train, seed=0), Scenes(test_images, test_labels, test, seed=1)


def _scene(images: UInt8Array, labels: Int64Array, draw: np.random.RandomState) -> tuple[UInt8Array, dict[str, Any]]:
    """Two to four pictures on a dark ground, the later ones in front; what is nearly hidden does not count."""
    scene = draw.randint(0, INK, (SIDE, SIDE)).astype(np.uint8)
    front = np.zeros((SIDE, SIDE), np.int64)  # which picture each pixel shows, from 1 on
    chosen = draw.randint(0, len(images), draw.randint(2, 5))
    for place, which in enumerate(chosen, 1):
        top, left = draw.randint(0, SIDE - PICTURE + 1, 2)
        shown = np.s_[top : top + PICTURE, left : left + PICTURE]
        inked = images[which] > INK
        scene[shown] = np.where(inked, images[which], scene[shown])
        front[shown] = np.where(inked, place, front[shown])
    masks = front[None] == np.arange(1, len(chosen) + 1)[:, None, None]
    seen = masks.sum((1, 2)) >= PICTURE
    masks = masks[seen]
    targets = {"boxes": _boxes(masks), "labels": labels[chosen][seen] + 1, "masks": masks.astype(np.uint8)}
    return scene[None], targets


def _boxes(masks: Any) -> Any:
    """(N, 4) float32 around masks (N, H, W)."""
    rows, columns = masks.any(2), masks.any(1)
    first = [columns.argmax(1), rows.argmax(1)]
    last = [SIDE - columns[:, ::-1].argmax(1), SIDE - rows[:, ::-1].argmax(1)]
    return np.stack(first + last, 1).astype(np.float32)
