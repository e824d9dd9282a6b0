"""A dataset and a model of a user's that take their time, in every way in which user code does."""

import ctypes
import os
import signal
import time
from pathlib import Path

import numpy as np
from torch import Tensor, nn

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def small(root: str) -> Arrays:
    """64 images."""
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (80, 1, 8, 8), dtype=np.uint8)
    labels = draw.integers(0, 10, len(images))
    return images[:64], labels[:64], images[64:], labels[64:]


def late(root: str) -> Arrays:
    """Takes longer than anybody would wait for a heartbeat."""
    time.sleep(35)
    return small(root)


def deadly(root: str) -> Arrays:
    """Kills its process, the first time it is called."""
    try:
        (Path(root) / "armed").unlink()
    except FileNotFoundError:
        return small(root)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


class Photographs:
    """64 images, read one by one; the one whose number stands in a file `hang`, or number 5, takes for ever as long as
    there is that file."""

    classes = tuple("0123456789")

    def __init__(self, root: str, images: np.ndarray, labels: np.ndarray) -> None:
        self.hang, self.images, self.labels = Path(root) / "hang", images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        while self._hangs(i):
            time.sleep(0.1)
        return self.images[i], int(self.labels[i])

    def _hangs(self, i: int) -> bool:
        try:
            return i == int(self.hang.read_text() or 5)
        except FileNotFoundError:
            return False


def streamed(root: str) -> tuple[Photographs, Photographs]:
    images, labels, test_images, test_labels = small(root)
    return Photographs(root, images, labels), Photographs(root, test_images[:4], test_labels[:4])


class Slow(nn.Module):
    """Its first minibatches sleep, or hold the lock of Python, for so long."""

    def __init__(self, num_classes: int, sleep_s: float, hold_s: float, minibatches: int) -> None:
        super().__init__()
        self.sleep_s, self.hold_s, self.left = sleep_s, hold_s, minibatches
        self.line = nn.Linear(64, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        if self.left and self.training:
            self.left -= 1
            time.sleep(self.sleep_s)
            ctypes.PyDLL(None).usleep(int(1e6 * self.hold_s))  # unlike CDLL's, PyDLL's calls keep the lock
        out: Tensor = self.line(x.flatten(1))
        return out


def slow(
    num_classes: int, in_channels: int, sleep_s: float = 0.0, hold_s: float = 0.0, minibatches: int = 2
) -> nn.Module:
    return Slow(num_classes, sleep_s, hold_s, minibatches)
