"""Small images in colour, as CIFAR's are: a garment or a digit on a ground with a texture, composed from a seed.

They are integers made from integers, drawn by numpy's RandomState, whose stream is frozen: the same bytes everywhere.
"""

import gzip
from pathlib import Path

import numpy as np
import numpy.typing as npt

UInt8Array = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]
Halves = tuple[UInt8Array, Int64Array, UInt8Array, Int64Array]
"""Training images (N, 3, 32, 32) and labels (N,), test images and labels."""

SIDE, PATCH = 32, 8  # pixels of an image, and between two colours of its ground
GROUND, SHAPE = (0, 128), (96, 256)  # levels of their colours
NOISE = 16  # levels, either way


def garments(root: str, train: int = 5_000, test: int = 2_000) -> Halves:
    """The first images of Fashion-MNIST's two sets, in colour. Raises ValueError where `root` does not hold it."""
    images, labels, test_images, test_labels = grey(root, "FashionMNIST")
    return (
        composed(images[:train], seed=0), labels[:train],
        composed(test_images[:test], seed=1), test_labels[:test],
    )  # fmt: skip


def grey(root: str, name: str) -> Halves:
    """`FashionMNIST` or `MNIST` as it is, images (N, 28, 28). Raises ValueError where `root` does not hold it."""
    folder = Path(root) / name / "raw"
    if not folder.is_dir():
        raise ValueError(f"data.root: {root} holds no {name}/raw, which is where torchvision puts {name}")
    parts = [_idx(folder, f"{half}-{kind}") for half in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    images, labels, test_images, test_labels = parts
    return images, labels.astype(np.int64), test_images, test_labels.astype(np.int64)


def digits(root: str = "", train: int = 1_400) -> Halves:
    """Those of scikit-learn, in colour, which need no folder: the first `train` to learn, the rest for the test."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images = (found.images.astype(np.int64) * 255 // 16).astype(np.uint8).repeat(3, 1).repeat(3, 2)
    labels = found.target.astype(np.int64)
    return composed(images[:train], seed=0), labels[:train], composed(images[train:], seed=1), labels[train:]


def composed(shapes: UInt8Array, seed: int) -> UInt8Array:
    """Each of the grey shapes (N, h, w) somewhere on a ground of its own, in a colour of its own: (N, 3, 32, 32)."""
    draw = np.random.RandomState(seed)  # its stream never changes, a Generator's may
    images = np.empty((len(shapes), 3, SIDE, SIDE), np.uint8)
    for image, shape in zip(images, shapes, strict=True):
        height, width = shape.shape
        ground, colour = _ground(draw), draw.randint(*SHAPE, (3, 1, 1))
        top, left = draw.randint(0, SIDE - height + 1), draw.randint(0, SIDE - width + 1)
        place = np.s_[:, top : top + height, left : left + width]
        ink = shape.astype(np.int64)
        ground[place] = (ink * (ink * colour // 255) + (255 - ink) * ground[place]) // 255
        image[:] = np.clip(ground + draw.randint(-NOISE, NOISE + 1, ground.shape), 0, 255)
    return images


def _ground(draw: np.random.RandomState) -> Int64Array:
    """Colours every few pixels, blended between them: (3, 32, 32)."""
    corners = draw.randint(*GROUND, (3, SIDE // PATCH + 1, SIDE // PATCH + 1)).astype(np.int64)
    cell, part = np.divmod(np.arange(SIDE), PATCH)
    rows = corners[:, cell] * (PATCH - part)[:, None] + corners[:, cell + 1] * part[:, None]
    blended: Int64Array = rows[..., cell] * (PATCH - part) + rows[..., cell + 1] * part
    return blended // PATCH**2


def _idx(folder: Path, name: str) -> UInt8Array:
    """An array in MNIST's format: 4 bytes that end with its dimensions, each of these in 4, then the bytes."""
    plain = folder / f"{name}-ubyte"
    packed = plain.with_name(f"{name}-ubyte.gz")
    data = plain.read_bytes() if plain.exists() else gzip.decompress(packed.read_bytes())
    sizes = np.frombuffer(data, ">u4", count=data[3], offset=4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(sizes.tolist())
