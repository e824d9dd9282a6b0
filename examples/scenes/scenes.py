"""Scenes with three digits each, composed from a seed: of MNIST where it is in `root`, otherwise of scikit-learn's."""

from pathlib import Path

import numpy as np

SIDE, DIGITS = 40, 3


def pixels(root: str, train: int = 600, test: int = 100):
    """For segmentation: images (N, 1, 40, 40), and classes (N, 40, 40): 0 is the ground, a digit d is d + 1."""
    images, labels = _digits(Path(root))
    draw = np.random.default_rng(0)
    halves = []
    for count, first, last in ((train, 0, 0.8), (test, 0.8, 1)):  # a digit of one half is never in the other
        chosen = np.arange(int(first * len(images)), int(last * len(images)))
        scenes = [_scene(images, labels, draw.choice(chosen, DIGITS), draw) for _ in range(count)]
        halves.append((np.stack([image for image, _ in scenes])[:, None], np.stack([classes for _, classes in scenes])))
    return tuple(halves)


class Boxed:
    """Examples for detection: an image (1, 40, 40), and a dict of boxes, x1 y1 x2 y2, and labels: d + 1 for digit d."""

    classes = 11  # with the ground

    def __init__(self, images, classes):
        self.images, self.pixels = images, classes

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        labels = np.unique(self.pixels[i])[1:].astype(np.int64)  # without the ground
        boxes = np.zeros((len(labels), 4), np.float32)
        for box, label in zip(boxes, labels, strict=True):
            rows, columns = np.nonzero(self.pixels[i] == label)
            box[:] = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
        return self.images[i], {"boxes": boxes, "labels": labels}


def boxes(root: str, train: int = 600, test: int = 100):
    """For detection: the same scenes, with a box around each kind of digit."""
    return tuple(Boxed(*half) for half in pixels(root, train, test))


def _digits(root: Path):
    """Images (N, h, w) uint8 and labels (N,)."""
    if (root / "MNIST").is_dir():
        from torchvision.datasets import MNIST

        found = MNIST(root, train=True)
        return found.data.numpy()[:5000, ::2, ::2], found.targets.numpy()[:5000]
    from sklearn.datasets import load_digits

    found = load_digits()
    return (found.images * 255 / 16).astype(np.uint8).repeat(2, 1).repeat(2, 2), found.target


def _scene(images, labels, chosen, draw):
    scene = draw.integers(0, 40, (SIDE, SIDE)).astype(np.uint8)
    classes = np.zeros((SIDE, SIDE), np.uint8)
    for digit in chosen:
        image = images[digit]
        height, width = image.shape
        top, left = draw.integers(0, SIDE - height + 1), draw.integers(0, SIDE - width + 1)
        place = np.s_[top : top + height, left : left + width]
        inked = image > 80
        scene[place] = np.where(inked, image, scene[place])
        classes[place] = np.where(inked, labels[digit] + 1, classes[place])
    return scene, classes
