"""Fashion-MNIST's garments and MNIST's digits, 28 x 28: as images with labels, and composed to scenes with masks.

Where a root has neither, scikit-learn's digits stand for the garments, and the same upside down for the digits: enough
to see that a command works. Whatever is drawn comes from seeds, so that scenes are the same to the byte everywhere.
"""

from pathlib import Path

import numpy as np

SIDE, PICTURE, INK = 64, 28, 40
"""Pixels of a scene's side and of a picture's, and from which brightness on a pixel belongs to what is shown."""
CLASSES = 10
"""Of garments, and of digits."""


def garments(root):
    """Four arrays: images (N, 28, 28) and labels 0 to 9, for training and for the test."""
    return _read(Path(root))[0]


def both(root):
    """Likewise, garments 0 to 9 and digits 10 to 19 by turns, so that the first N of them are half garments."""
    ours, theirs = _read(Path(root))
    found = []
    for of_ours, of_theirs, added in zip(ours, theirs, (0, CLASSES) * 2, strict=True):
        count = min(len(of_ours), len(of_theirs))
        pair = np.stack([of_ours[:count], of_theirs[:count] + np.asarray(added, of_theirs.dtype)], 1)
        found.append(pair.reshape(2 * count, *of_ours.shape[1:]))
    return tuple(found)


def scenes(root, train=500, test=200):
    """Two sets of scenes of garments and digits. A picture of one half is never in the other."""
    images, labels, test_images, test_labels = both(root)
    return Scenes(images, labels, train, seed=0), Scenes(test_images, test_labels, test, seed=1)


class Scenes:
    """Examples for detection: a scene (1, 64, 64), and a dict of boxes, x1 y1 x2 y2, labels from 1 on, and masks."""

    classes = 2 * CLASSES + 1  # with the ground

    def __init__(self, images, labels, count, seed):
        draw = np.random.default_rng(seed)
        self.made = [_scene(images, labels, draw) for _ in range(count)]

    def __len__(self):
        return len(self.made)

    def __getitem__(self, i):
        return self.made[i]


def _scene(images, labels, draw):
    """Two to four pictures on a dark ground, the later ones in front; what is nearly hidden does not count."""
    scene = draw.integers(0, INK, (SIDE, SIDE)).astype(np.uint8)
    front = np.zeros((SIDE, SIDE), np.int64)  # which picture each pixel shows, from 1 on
    chosen = draw.integers(0, len(images), draw.integers(2, 5))
    for place, which in enumerate(chosen, 1):
        top, left = draw.integers(0, SIDE - PICTURE + 1, 2)
        shown = np.s_[top : top + PICTURE, left : left + PICTURE]
        inked = images[which] > INK
        scene[shown] = np.where(inked, images[which], scene[shown])
        front[shown] = np.where(inked, place, front[shown])
    masks = front[None] == np.arange(1, len(chosen) + 1)[:, None, None]
    seen = masks.sum((1, 2)) >= PICTURE
    masks = masks[seen]
    targets = {"boxes": _boxes(masks), "labels": labels[chosen][seen].astype(np.int64) + 1}
    return scene[None], targets | {"masks": masks.astype(np.uint8)}


def _boxes(masks):
    """(N, 4) around masks (N, H, W)."""
    rows, columns = masks.any(2), masks.any(1)
    first = [columns.argmax(1), rows.argmax(1)]
    last = [SIDE - columns[:, ::-1].argmax(1), SIDE - rows[:, ::-1].argmax(1)]
    return np.stack(first + last, 1).astype(np.float32)


def _read(root):
    """Garments and digits, four arrays each."""
    if (root / "MNIST").is_dir() and (root / "FashionMNIST").is_dir():
        from torchvision.datasets import MNIST, FashionMNIST

        return tuple(
            tuple(part.numpy() for half in (True, False) for part in _parts(kind(root, train=half)))
            for kind in (FashionMNIST, MNIST)
        )
    from sklearn.datasets import load_digits

    found = load_digits()
    images = np.pad((found.images * 255 / 16).astype(np.uint8).repeat(3, 1).repeat(3, 2), ((0, 0), (2, 2), (2, 2)))
    labels = found.target.astype(np.int64)
    cut = 1437
    upright = (images[:cut], labels[:cut], images[cut:], labels[cut:])
    return upright, tuple(part[:, ::-1] if part.ndim > 1 else part for part in upright)


def _parts(found):
    return found.data, found.targets
