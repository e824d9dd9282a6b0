"""Images read one by one, in the one order that all workers divide, or wrongly, as each worker draws them.

Paper 4, section 3, remark 4: each epoch has one random shuffling, divided among the k workers.
"""

import numpy as np

from service.claims.experiments.images import Halves, Int64Array, UInt8Array, garments


class Divided:
    """A map-style dataset: example i is the i-th."""

    classes = 10

    def __init__(self, images: UInt8Array, labels: Int64Array) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[UInt8Array, int]:
        """An image (C, H, W) and its class."""
        return self.images[i], int(self.labels[i])


class Drawn(Divided):
    """In place of example i of the shared order, whichever its worker happens to draw from the whole set: an epoch has
    some twice and others never. The draw belongs to seed, epoch and i, as numpy's own generator is seeded for each."""

    def __getitem__(self, i: int) -> tuple[UInt8Array, int]:
        return super().__getitem__(np.random.randint(len(self)))


def divided_garments(root: str) -> tuple[Divided, Divided]:
    """The set for training and the set for the test, in the one order. Raises ValueError as `garments`."""
    return _sets(Divided, garments(root))


def drawn_garments(root: str) -> tuple[Divided, Divided]:
    """Likewise, as each worker draws them for training."""
    return _sets(Drawn, garments(root))


def divided_digits(root: str = "") -> tuple[Divided, Divided]:
    """As `divided_garments`, of scikit-learn's digits (1, 8, 8), which need no folder."""
    return _sets(Divided, _digits())


def drawn_digits(root: str = "") -> tuple[Divided, Divided]:
    """As `drawn_garments`, likewise."""
    return _sets(Drawn, _digits())


def _digits(train: int = 1_400) -> Halves:
    from sklearn.datasets import load_digits

    found = load_digits()
    images = (found.images * 15).astype(np.uint8)[:, None]
    labels = found.target.astype(np.int64)
    return images[:train], labels[:train], images[train:], labels[train:]


def _sets(kind: type[Divided], halves: Halves) -> tuple[Divided, Divided]:
    images, labels, test_images, test_labels = halves
    return kind(images, labels), Divided(test_images, test_labels)
