"""Paper 2's images, grey and 224x224, from photographs in root/train/<class> and root/val/<class>."""

from pathlib import Path

import numpy as np
from PIL import Image

SIDE = 224


def photographs(root: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training images (N, SIDE, SIDE) uint8 and labels (N,), then those of the test set.

    Classes are numbered as the folders of root/train are named; as arrays, so that machines can hand images on.
    """
    classes = sorted(folder.name for folder in (Path(root) / "train").iterdir() if folder.is_dir())
    return *read(Path(root) / "train", classes), *read(Path(root) / "val", classes)


def read(folder: Path, classes: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """The images of one half, sorted by class and name, and their labels."""
    found = [(path, label) for label, name in enumerate(classes) for path in sorted((folder / name).iterdir())]
    images = np.empty((len(found), SIDE, SIDE), dtype=np.uint8)
    for into, (path, _) in zip(images, found, strict=True):
        with Image.open(path) as photograph:
            into[:] = photograph.convert("L").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return images, np.array([label for _, label in found], dtype=np.int64)
