"""Checkpoints: what is listed, what is handed out, and what nobody gets."""

import json
import os
from pathlib import Path

import pytest

from service.errors import CheckpointNotFound
from service.storage.checkpoints import checkpoints, chunks, give, open_file, resuming
from trainers import TrainSpec


def write_checkpoint(run_dir: Path, examples: int, epoch: int) -> Path:
    """A checkpoint as a run leaves it, but for what is in it."""
    folder = run_dir / "checkpoints" / f"{examples:012d}"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    position = {"epoch": epoch, "step": 0, "updates": 0, "examples": examples}
    (folder / "position.json").write_text(json.dumps({"position": position, "spec": {}}))
    return folder


def test_they_are_listed_with_their_files_and_read_whole(tmp_path: Path) -> None:
    assert checkpoints(tmp_path) == []
    write_checkpoint(tmp_path, 2000, 2)
    write_checkpoint(tmp_path, 900, 1)
    (tmp_path / "checkpoints" / ".000000003000.part").mkdir()
    first, second = checkpoints(tmp_path)
    assert (first.step, first.examples, first.epoch, second.step) == ("000000000900", 900, 1, "000000002000")
    assert next((file.name, file.bytes) for file in first.files) == ("model.safetensors", 7)
    assert b"".join(chunks(open_file(tmp_path, first.step, "model.safetensors"))) == b"weights"
    resumed = resuming(TrainSpec(), tmp_path)
    assert resumed.checkpoint.resume == str(tmp_path / "checkpoints" / "000000002000")


@pytest.mark.parametrize(
    ("step", "name"),
    [
        ("..", "events.jsonl"),
        ("../..", "secret"),
        ("000000000900", "../../events.jsonl"),
        ("000000000900", ".."),
        ("000000000900", "model.safetensors\0"),
        ("000000000900", "/etc/passwd"),
        ("000000000900", "folder"),
        ("000000000900", "link"),
        ("000000000900", "pipe"),
        ("000000000900", "missing"),
        ("000000000901", "secret"),
        ("1" * 21, "model.safetensors"),
    ],
)
def test_nothing_leaves_the_folder(tmp_path: Path, step: str, name: str) -> None:
    run_dir = tmp_path / "run"
    folder = write_checkpoint(run_dir, 900, 1)
    (tmp_path / "secret").write_text("key")
    (run_dir / "events.jsonl").write_text("log")
    (folder / "folder").mkdir()
    (folder / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(folder / "pipe")
    (run_dir / "checkpoints" / "000000000901").symlink_to(tmp_path)
    with pytest.raises(CheckpointNotFound):
        open_file(run_dir, step, name)
    assert [one.step for one in checkpoints(run_dir)] == ["000000000900"]
    assert {file.name for file in checkpoints(run_dir)[0].files} == {"model.safetensors", "position.json"}


def test_a_folder_of_checkpoints_that_is_a_link_holds_none(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "other", 900, 1)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "other" / "checkpoints")
    assert checkpoints(tmp_path / "run") == []
    with pytest.raises(CheckpointNotFound):
        open_file(tmp_path / "run", "000000000900", "model.safetensors")


def test_what_is_given_away_stays_when_the_giver_goes(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "old", 900, 1)
    give(tmp_path / "old", "000000000900", tmp_path / "new")
    (folder / "model.safetensors").unlink()
    assert (tmp_path / "new" / "checkpoints" / "000000000900" / "model.safetensors").read_bytes() == b"weights"
    with pytest.raises(CheckpointNotFound):
        give(tmp_path / "old", "000000000901", tmp_path / "another")
    (folder / "link").symlink_to("/etc/passwd")
    with pytest.raises(CheckpointNotFound, match="no plain file"):
        give(tmp_path / "old", "000000000900", tmp_path / "another")
    assert not (tmp_path / "another").exists()
