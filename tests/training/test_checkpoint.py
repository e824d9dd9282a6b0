"""Checkpoints of a run come and go as a whole."""

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from trainers.errors import DiskFull, SpecRejected
from trainers.training.checkpoint import Checkpoint, damage, newest_whole, prune, read_checkpoint, write_checkpoint
from trainers.training.position import Position


def write(root: Path, examples: int, value: float = 0.0) -> None:
    """A small one."""
    model = {"weight": torch.full((3,), value)}
    write_checkpoint(root / f"{examples:012d}", Checkpoint(Position(examples=examples), {}, model))


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for examples in (1000, 2000, 3000):
        write(tmp_path, examples)
    (tmp_path / ".000000000500.gone").mkdir()  # a removal that was killed
    prune(tmp_path, keep_last=2)
    assert names(tmp_path) == ["000000002000", "000000003000"]


def test_the_one_that_a_run_began_from_is_kept_too(tmp_path: Path) -> None:
    """A worker that joins the run hours later begins there."""
    for examples in (1000, 2000, 3000, 4000):
        write(tmp_path, examples)
    prune(tmp_path, keep_last=1, begin=str(tmp_path / "000000002000"))
    assert names(tmp_path) == ["000000002000", "000000004000"]


def test_one_is_newer_than_those_ahead_of_it_behind_which_the_run_has_gone_back(tmp_path: Path) -> None:
    for examples in (2000, 3000, 1000):
        write(tmp_path, examples)
    prune(tmp_path, keep_last=2, written=f"{1000:012d}")
    assert names(tmp_path) == ["000000001000", "000000003000"]
    write(tmp_path, 1500)
    prune(tmp_path, keep_last=2, written=f"{1500:012d}")
    assert names(tmp_path) == ["000000001000", "000000001500"]


def test_nobody_finds_half_of_one_that_is_removed_or_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for examples in (1000, 2000):
        write(tmp_path, examples)
    remove = shutil.rmtree

    def look_first(path: Path, **options: Any) -> None:
        assert path.name.startswith("."), "it still stands where it is looked for"
        remove(path, **options)

    monkeypatch.setattr(shutil, "rmtree", look_first)
    prune(tmp_path, keep_last=1)
    write(tmp_path, 2000, value=1.0)
    assert names(tmp_path) == ["000000002000"]
    assert read_checkpoint(tmp_path / "000000002000").model["weight"].tolist() == [1.0, 1.0, 1.0]


def test_one_that_is_written_again_is_there_while_the_one_before_it_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that goes back writes it again, and its evaluator may be ended at any moment."""
    write(tmp_path, 1000)
    remove = shutil.rmtree

    def look(path: Path, **options: Any) -> None:
        assert "000000001000" in names(tmp_path)
        remove(path, **options)

    monkeypatch.setattr(shutil, "rmtree", look)
    write(tmp_path, 1000, value=1.0)
    assert read_checkpoint(tmp_path / "000000001000").model["weight"].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "position.json"])
def test_one_for_which_there_is_no_room_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    write(tmp_path, 1000)

    def save(tensors: object, path: Path, header: object = None) -> None:
        if name in path.name:
            raise SafetensorError(f"I/O error: {os.strerror(number)} (os error {number})")
        path.write_bytes(b"weights")

    def write_text(path: Path, text: str) -> None:
        if path.name == name:
            raise OSError(number, os.strerror(number))
        path.write_bytes(text.encode())

    monkeypatch.setattr("trainers.models.weights.save_file", save)
    monkeypatch.setattr(Path, "write_text", write_text)
    with pytest.raises(DiskFull, match=rf"there is no room for the checkpoint {tmp_path}/000000002000"):
        write(tmp_path, 2000)
    assert names(tmp_path) == ["000000001000"]


def test_other_failures_are_not_called_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        write(tmp_path / "file", 1000)


FILES = ["buffers.safetensors", "model.safetensors", "optimizer.safetensors", "position.json"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["cut off", "altered", "emptied", "removed"])
def test_one_that_is_damaged_is_known_and_the_one_before_it_taken(tmp_path: Path, name: str, how: str) -> None:
    tensor = torch.arange(5.0)
    parts = {"w": tensor}, {"m": {"w": tensor}}, {0: {"b": tensor}}
    for examples in (1000, 2000, 3000):
        write_checkpoint(tmp_path / f"{examples:012d}", Checkpoint(Position(examples=examples), {"a": 1}, *parts))
    newest, before = tmp_path / "000000003000", tmp_path / "000000002000"
    assert sorted(path.name for path in newest.iterdir()) == FILES
    assert newest_whole(newest) == (newest, [])
    content = (newest / name).read_bytes()
    middle = len(content) // 2
    altered = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    if how == "removed":
        (newest / name).unlink()
    else:
        (newest / name).write_bytes({"cut off": content[:-7], "altered": altered, "emptied": b""}[how])
    found, faults = newest_whole(newest)
    assert found == before
    assert len(faults) == 1
    assert str(newest / name) in faults[0]


def test_one_from_the_time_before_checksums_is_taken_as_it_is(tmp_path: Path) -> None:
    write(tmp_path, 1000)
    about = tmp_path / "000000001000" / "position.json"
    found = json.loads(about.read_text())
    del found["sha256"], found["own_sha256"]
    about.write_text(json.dumps(found))
    assert damage(about.parent) is None


def test_where_none_is_whole_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(SpecRejected, match="there is no checkpoint in"):
        newest_whole(tmp_path / "000000001000")
    write(tmp_path, 1000)
    (tmp_path / "000000001000" / "model.safetensors").write_bytes(b"")
    with pytest.raises(SpecRejected, match="is not as it was written, and there is none before it; begin anew"):
        newest_whole(tmp_path / "000000001000")
