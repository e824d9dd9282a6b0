"""Photographs that fit in memory: decoded once a node, and the same minibatches as of a streamed set, bit for bit."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.test_streamed import PLAN
from trainers.data import photographs as module
from trainers.data.datasets import open_dataset
from trainers.data.memory import MemoryDataset
from trainers.data.streamed import StreamedDataset
from trainers.errors import RunFailed
from trainers.spec import DataSpec


def of(root: Path, **options: int) -> DataSpec:
    return DataSpec.model_validate({"name": "image_folder", "root": str(root), "loader_processes": 0, **options})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"resize": 24},
        {"resize": 24, "random_crop": 2, "horizontal_flip": True},
        {"random_resized_crop": 24, "horizontal_flip": True},
        {"limit": 9, "random_resized_crop": 24},
    ],
)
@pytest.mark.parametrize("are_alike", [False, True])
def test_decoded_and_streamed_are_bit_equal(
    photographs: Path, node: Path, options: dict[str, int], are_alike: bool
) -> None:
    if are_alike:
        for path in photographs.glob("*/*/*.png"):
            Image.open(path).crop((0, 0, 40, 40)).save(path)
    notes: list[str] = []
    plan = [(epoch, examples[examples < 9]) for epoch, examples in PLAN]
    with (
        open_dataset(of(photographs, **options), 1, node, note=notes.append) as decoded,
        open_dataset(of(photographs, **options), 1, node) as mapped,
        open_dataset(of(photographs, **options), 1) as streamed,
    ):
        assert isinstance(decoded, MemoryDataset)
        assert isinstance(mapped, MemoryDataset)
        assert isinstance(streamed, StreamedDataset)
        assert decoded.facts.inputs == streamed.facts.inputs
        for dataset in (decoded, mapped):
            for mine, theirs in zip(dataset.batches(plan), streamed.batches(plan), strict=True):
                assert torch.equal(mine.images, theirs.images)
                assert torch.equal(mine.labels, theirs.labels)
            for mine, theirs in zip(dataset.test_batches(3), streamed.test_batches(3), strict=True):
                assert torch.equal(mine.images, theirs.images)
                assert torch.equal(mine.labels, theirs.labels)
    assert notes[0] == f"decodes photographs into memory, 1 of {decoded.num_train + 4}"


@pytest.mark.parametrize("options", [{"resize": 32}, {"random_resized_crop": 32}])
def test_what_is_too_large_is_streamed(photographs: Path, node: Path, options: dict[str, int]) -> None:
    limit = 3 * 32 * 32 * 15  # one photograph less than there are
    with open_dataset(of(photographs, **options, memory_limit_bytes=limit), 0, node) as dataset:
        assert isinstance(dataset, StreamedDataset)
    assert {path.suffix for path in node.iterdir()} == {".lock", ".unshared"}


def test_a_full_disk_means_streaming(photographs: Path, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with open_dataset(of(photographs), 0, node) as dataset:
        assert isinstance(dataset, StreamedDataset)
    assert {path.suffix for path in node.iterdir()} == {".lock", ".unshared"}


@pytest.mark.parametrize("random_resized_crop", [0, 32])
@pytest.mark.parametrize("half", ["train", "val"])
def test_what_cannot_be_read_is_named_before_training(
    photographs: Path, node: Path, half: str, random_resized_crop: int
) -> None:
    broken = photographs / half / "dog" / "1.png"
    broken.write_bytes(broken.read_bytes()[:200])  # its head is there
    i, name = {"train": (7, "training"), "val": (3, "test")}[half]
    with pytest.raises(RunFailed, match=rf"image_folder: {name} example {i} \({broken}\) cannot be read: "):
        open_dataset(of(photographs, random_resized_crop=random_resized_crop), 0, node)


def test_an_error_among_many_ends_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 1)
    done: list[int] = []

    def decode(i: int) -> int:
        if i == 3:
            raise RunFailed("here")
        done.append(i)
        return i

    with pytest.raises(RunFailed, match="here"):
        module._in_threads(decode, 100_000)
    assert len(done) < 100_000
    assert module._in_threads(lambda i: i * i, 70) == np.square(np.arange(70)).tolist()
