"""The data of the claims' own experiments: the same bytes everywhere."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from service.claims.experiments.images import composed, digits, garments
from service.claims.experiments.shuffles import divided_digits, drawn_digits
from trainers.data.loading.generators import kept_generators, seed_generators


def test_digits_in_colour_are_exact_to_the_byte() -> None:
    train, labels, test, test_labels = digits()
    assert (train.shape, train.dtype, test.shape) == ((1400, 3, 32, 32), np.uint8, (397, 3, 32, 32))
    assert len(labels) == 1400
    assert len(test_labels) == 397
    found = hashlib.sha256(train.tobytes() + test.tobytes()).hexdigest()
    assert found == "98d6c27d4e73035f01b8a9ad2a15075278e409f3fc3654f360aa632a2ab09606"


def test_a_shape_lies_in_its_colour_on_the_ground() -> None:
    none, full = np.zeros((1, 4, 4), np.uint8), np.full((1, 4, 4), 255, np.uint8)
    differs = (composed(none, seed=3) != composed(full, seed=3))[0].any(axis=0)
    rows, columns = np.nonzero(differs)
    assert (rows.max() - rows.min(), columns.max() - columns.min()) == (3, 3)
    shape = composed(full, seed=3)[0][:, differs].astype(int)
    assert (shape.max(axis=1) - shape.min(axis=1) <= 32).all()  # one colour, but for the noise


def test_garments_are_read_from_the_files_of_fashion_mnist(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no FashionMNIST/raw"):
        garments(str(tmp_path))
    folder = tmp_path / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    for half, count in (("train", 3), ("t10k", 2)):
        images = np.arange(count * 28 * 28).astype(np.uint8)
        sizes = np.array([count, 28, 28], ">u4").tobytes()
        (folder / f"{half}-images-idx3-ubyte").write_bytes(bytes([0, 0, 8, 3]) + sizes + images.tobytes())
        (folder / f"{half}-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1]) + sizes[:4] + bytes(range(count)))
    train, labels, test, test_labels = garments(str(tmp_path), train=2)
    expected = composed(np.arange(2 * 28 * 28).astype(np.uint8).reshape(2, 28, 28), seed=0)
    assert np.array_equal(train, expected)
    assert labels.tolist() == [0, 1]
    assert test.shape == (2, 3, 32, 32)
    assert test_labels.tolist() == [0, 1]


def test_what_each_worker_draws_belongs_to_seed_epoch_and_example_and_an_epoch_misses_some() -> None:
    divided, test = divided_digits()
    drawn, same_test = drawn_digits()
    assert np.array_equal(drawn.images, divided.images)
    assert np.array_equal(test[5][0], same_test[5][0])

    def epoch(number: int) -> list[bytes]:
        found = []
        for i in range(len(drawn)):
            seed_generators(0, number, i, 0)
            found.append(drawn[i][0].tobytes())
        return found

    with kept_generators():
        first = epoch(0)
        assert first == epoch(0)
        assert first != epoch(1)
    whole = len({divided[i][0].tobytes() for i in range(len(divided))})
    assert abs(len(set(first)) / whole - (1 - np.exp(-1))) < 0.05
