"""Runs whose directory lies on a disk that is full, on a small file system of their own."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import trainers
from tests.conftest import Disk
from tests.runtime.runs import Watched, gone_soon, soon, spec, start
from trainers import ClusterInfo, EventLogReader
from trainers.runtime.event_log import RESERVE_NAME
from trainers.training.checkpoint import damage

MODEL_BYTES, CHECKPOINT_BYTES = 40 * 1024, 84 * 1024  # of these runs
OTHER_BYTES = 52 * 1024  # the log takes 12 KiB of them, its reserve 16, the fence 4
CHECKPOINTS = {"every_epochs": 1, "keep_last": 100}


def begun(name: str, run_dir: Path, **more: Any) -> Watched:
    run_dir.mkdir()
    return start(name, spec(**({"epochs": 8, "checkpoint": CHECKPOINTS} | more)), run_dir)


def warnings(run: Watched) -> list[str]:
    return [line["message"] for line in run.of("log") if line["level"] == "warning"]


@pytest.mark.long
def test_a_run_goes_on_without_the_checkpoints_for_which_there_is_no_room(
    cluster: ClusterInfo, small_disk: Disk
) -> None:
    run = begun("full-checkpoints", small_disk(3 * CHECKPOINT_BYTES + MODEL_BYTES + OTHER_BYTES) / "run")
    assert run.end().data["state"] == "SUCCEEDED"
    written = sorted((run.folder / "checkpoints").iterdir())
    assert 0 < len(written) < 8
    assert len(warnings(run)) == 8 - len(written)
    assert warnings(run)[-1] == (
        f"there is no room for the checkpoint {run.folder}/checkpoints/{8 * 203:012d}; the run goes on, and the "
        f"checkpoint {written[-1]} is whole"
    )
    assert [damage(folder) for folder in written] == [None] * len(written)
    assert (run.folder / "model.safetensors").exists()


def test_a_model_for_which_there_is_no_room_is_a_failure_with_a_remedy(cluster: ClusterInfo, small_disk: Disk) -> None:
    run = begun("full-model", small_disk(OTHER_BYTES) / "run")
    end = run.end().data
    assert (end["state"], end["reason"]) == ("FAILED", "DiskFull")
    sentence = f"there is no room for {run.folder}/model.safetensors; there is no checkpoint; make room before the next"
    assert end["message"].startswith(sentence)
    assert not list(run.folder.rglob("*.part"))


def test_a_run_that_cannot_even_begin_its_log_is_over(cluster: ClusterInfo, small_disk: Disk, tmp_path: Path) -> None:
    """Its coordinator had nowhere to say so, and stayed."""
    (tmp_path / "file").touch()
    for job_id, run_dir in (("full-start", small_disk(4096) / "run"), ("no-folder", tmp_path / "file" / "run")):
        run = trainers.start_run(job_id, spec(), run_dir)
        soon(lambda run=run: not run.is_alive())  # type: ignore[misc]
        gone_soon(job_id, [])


@pytest.mark.long
@pytest.mark.timeout(900)
def test_wherever_the_disk_becomes_full_the_run_is_over_and_leaves_nothing(
    cluster: ClusterInfo, small_disk: Disk
) -> None:
    """From the fence and the first event to the result: the size decides for which write there is no room."""
    outcomes = []
    for blocks in (1, 2, 4, 6, 7, 9, 20, 34, 96):
        disk, job_id = small_disk(blocks * 4096), f"full-at-{blocks}"
        watched = begun(job_id, disk / "run", epochs=2)
        soon(lambda run=watched.run: not run.is_alive())  # type: ignore[misc]
        gone_soon(job_id, [])
        events = list(EventLogReader(watched.folder).read())
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        ended = [event.data["state"] for event in events if event.is_terminal]
        assert len(ended) <= 1
        assert not list(disk.rglob("*.part"))
        outcomes.append(ended[0] if ended else "")
        shutil.rmtree(watched.folder)
    assert outcomes[0] == ""  # there is no room even to say so
    assert "FAILED" in outcomes
    assert outcomes[-1] == "SUCCEEDED"


@pytest.mark.long
def test_a_log_for_which_there_is_no_room_still_has_an_end(cluster: ClusterInfo, small_disk: Disk) -> None:
    run_dir = small_disk(24 * 1024) / "run"
    run = begun("full-log", run_dir, epochs=60)
    end = run.end().data
    assert (end["state"], end["reason"]) == ("FAILED", "DiskFull")
    assert "No space left on device" in end["message"]
    numbers = [event.seq for event in EventLogReader(run_dir).read()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert not (run_dir / RESERVE_NAME).exists()
