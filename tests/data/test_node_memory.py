"""One copy of a set a node: written once, whole or not at all, and mapped read-only."""

import errno
import logging
import multiprocessing
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.runtime.runs import soon
from trainers.data import node_memory
from trainers.data.datasets import open_dataset
from trainers.data.examples import Arrays, Source
from trainers.data.sources import read_source
from trainers.spec import DataSpec

IDS = np.arange(20)


def counted(calls: list[str]) -> Callable[[DataSpec], Source]:
    def read(data: DataSpec) -> Source:
        calls.append(data.name)
        return read_source(data)

    return read


def test_a_shared_set_gives_the_same_minibatches(tmp_path: Path) -> None:
    private, first, second = (open_dataset(DataSpec(), 0, folder) for folder in (None, tmp_path, tmp_path))
    (expected,) = private.batches([(0, IDS)])
    for dataset in (first, second):
        (batch,) = dataset.batches([(0, IDS)])
        assert torch.equal(batch.images, expected.images)
        assert torch.equal(batch.labels, expected.labels)
        for mine, theirs in zip(dataset.test_batches(200), private.test_batches(200), strict=True):
            assert torch.equal(mine.images, theirs.images)


def test_only_the_first_reads_and_nobody_can_write(tmp_path: Path) -> None:
    calls: list[str] = []
    threads = [
        threading.Thread(target=node_memory.map_shared, args=(DataSpec(), tmp_path, counted(calls))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == ["digits"]
    arrays = node_memory.map_shared(DataSpec(), tmp_path, counted(calls))
    assert isinstance(arrays, Arrays)
    assert calls == ["digits"]
    with pytest.raises(ValueError, match="read-only"):
        arrays.train_images[0] = 0
    shutil.rmtree(tmp_path)
    assert arrays.train_images.sum() > 0  # a map outlives its name


def test_who_waits_for_another_process_says_so(tmp_path: Path) -> None:
    notes: list[str] = []
    lock = tmp_path / "x.lock"
    waiting = threading.Thread(target=lambda: node_memory.alone_on_node(lock, notes.append).__enter__())
    with node_memory.alone_on_node(lock, notes.append):
        waiting.start()
        soon(lambda: notes == ["waits for another process to read the dataset"])
        assert waiting.is_alive()
    waiting.join(30)
    assert not waiting.is_alive()


def test_two_specs_in_one_folder_are_two_sets(tmp_path: Path) -> None:
    assert open_dataset(DataSpec(limit=30), 0, tmp_path).num_train == 30
    assert open_dataset(DataSpec(), 0, tmp_path).num_train == 1437


def die_while_writing(folder: Path) -> None:
    def stop(*_: object) -> None:
        os._exit(9)

    node_memory.os.rename = stop  # type: ignore[assignment]
    node_memory.map_shared(DataSpec(), folder, read_source)


def test_a_killed_writer_leaves_no_half_set(tmp_path: Path) -> None:
    writer = multiprocessing.get_context("spawn").Process(target=die_while_writing, args=(tmp_path,))
    writer.start()
    writer.join(60)
    assert writer.exitcode == 9
    assert [path.suffix for path in sorted(tmp_path.iterdir())] == [".lock", ".part"]
    assert open_dataset(DataSpec(), 0, tmp_path).num_train == 1437
    assert not list(tmp_path.glob("*.part"))


def test_no_room_means_a_private_copy(
    node: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    calls: list[str] = []
    monkeypatch.setattr(node_memory.shutil, "disk_usage", full)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            arrays = node_memory.map_shared(DataSpec(), node, counted(calls))
            assert isinstance(arrays, Arrays)
    assert calls == ["digits", "digits"]
    assert "No space left" in caplog.text
    assert {path.suffix for path in node.iterdir()} == {".lock", ".unshared"}
