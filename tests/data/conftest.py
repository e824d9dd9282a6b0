"""Data for the tests of this folder."""

import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
import torchvision.datasets
from PIL import Image

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
"""Beside the repository where the project is developed; a user has no such folder."""


@pytest.fixture
def shared_data() -> Path:
    """The folder with the real MNIST and Fashion-MNIST."""
    if not (SHARED / "MNIST").is_dir():
        pytest.skip("the folder ../shared/data with MNIST is not beside this repository")
    return SHARED


@pytest.fixture
def cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root with 50 + 10 images in CIFAR-10's own files; torchvision's class is given their checksums."""
    home = tmp_path / "cifar-10-batches-py"
    home.mkdir()
    generator = np.random.default_rng(0)

    def write(name: str, content: object) -> str:
        raw = pickle.dumps(content)
        (home / name).write_bytes(raw)
        return hashlib.md5(raw).hexdigest()

    def part(name: str, count: int) -> list[str]:
        pixels = generator.integers(0, 256, (count, 3072), dtype=np.uint8)
        return [name, write(name, {"data": pixels, "labels": [i % 10 for i in range(count)]})]

    known = torchvision.datasets.CIFAR10
    monkeypatch.setattr(known, "train_list", [part(f"data_batch_{i}", 10) for i in range(1, 6)])
    monkeypatch.setattr(known, "test_list", [part("test_batch", 10)])
    names = {"label_names": [f"class{i}" for i in range(10)]}
    monkeypatch.setattr(known, "meta", {**known.meta, "md5": write("batches.meta", names)})
    return tmp_path


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """A root for image_folder: two classes, 6 training and 2 test photographs of different sizes each."""
    generator = np.random.default_rng(0)
    for half, count in (("train", 6), ("val", 2)):
        for name in ("cat", "dog"):
            folder = tmp_path / half / name
            folder.mkdir(parents=True)
            for i in range(count):
                height, width = generator.integers(40, 90, 2)
                pixels = generator.integers(0, 256, (height, width, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    return tmp_path


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A run's folder on its node."""
    folder = tmp_path / "node"
    folder.mkdir()
    return folder
