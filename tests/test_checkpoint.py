"""Checkpoints of a run come and go as a whole."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from trainers.checkpoint import Checkpoint, Position, prune, read_checkpoint, write_checkpoint


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
