"""Jobs as runs of Weights & Biases: each figure once, whoever dies in between."""

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.tracking.mirror import TrackedJob
from service.tracking.wandb_process import JobRun
from tests.service.fakes import FakeRun
from trainers.events import State

BLOCK, HEADER = 32 * 1024, 7
"""Of wandb's file, which is a log of LevelDB after a header of as many bytes."""
WITHIN_S = 200.0


class FakeWandb:
    """wandb's server: it has a run up to a step."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.logged: list[tuple[int, float | None]] = []
        self.is_away = False
        self.exit_code: int | None = None

    def log(self, points: dict[str, float], step: int, commit: bool) -> None:
        if self.is_away:
            raise ConnectionError("away")
        self.logged.append((step, points.get("train/loss")))

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code


def mirrored(job: TrackedJob, folder: Path, run: FakeWandb) -> JobRun:
    found = JobRun("project", "online", folder, job)

    def opened() -> Any:
        found.begin = run.step
        return run

    found._open = opened  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize(("has", "missing"), [(0, [2, 3, 4]), (3, [3, 4]), (5, [])])
def test_what_wandb_has_not_got_is_logged_once(
    tmp_path: Path, job: tuple[TrackedJob, FakeRun], has: int, missing: list[int]
) -> None:
    tracked, run = job
    run.step(3.0)
    run.state(State.FAILED)
    wandb = FakeWandb(has)
    assert mirrored(tracked, tmp_path, wandb).go_on()
    assert wandb.logged == [(seq, 0.5) for seq in missing]
    assert wandb.exit_code == 1
    assert not (tmp_path / "job1.json").exists()


def test_wandb_may_be_away_for_a_while(tmp_path: Path, job: tuple[TrackedJob, FakeRun]) -> None:
    tracked, run = job
    wandb = FakeWandb(0)
    found = mirrored(tracked, tmp_path, wandb)
    wandb.is_away = True
    for _ in range(2):
        with pytest.raises(ConnectionError):
            found.go_on()
    run.succeed()
    wandb.is_away = False
    assert found.go_on()
    assert [seq for seq, _ in wandb.logged] == [2, 3]
    assert wandb.exit_code == 0


def records(path: Path) -> Iterator[bytes]:
    """The records of wandb's file."""
    data, at, parts = path.read_bytes(), HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def history(run_dir: Path) -> list[tuple[int, float]]:
    """Step and training loss of each row of the only run that lies there."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = run_dir.glob("wandb/offline-run-*/*.wandb")
    found = []
    for one in map(Record.FromString, records(path)):
        values = {(item.key or ".".join(item.nested_key)): item.value_json for item in one.history.item}
        if "train/loss" in values:
            found.append((one.history.step.num, float(json.loads(values["train/loss"]))))
    return found


def test_offline_a_process_that_is_killed_leaves_no_gap_and_nothing_twice(
    tmp_path: Path, job: tuple[TrackedJob, FakeRun]
) -> None:
    pytest.importorskip("wandb", reason="the extra `wandb` is not installed")
    tracked, run = job
    command = [sys.executable, "-P", "-m", "service.tracking.wandb_process", "p", "offline", str(tmp_path / "open")]
    first = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
    print(tracked.model_dump_json(), file=first.stdin, flush=True)
    deadline = time.monotonic() + WITHIN_S
    while not list(run.run_dir.glob("wandb/offline-run-*/*.wandb")):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    run.step(3.0)
    run.succeed()
    second = subprocess.run(command, input="", text=True, timeout=WITHIN_S, check=False)  # it knows of the job
    assert second.returncode == 0
    assert history(run.run_dir) == [(2, 0.5), (3, 0.5), (4, 0.5)]
    assert not list((tmp_path / "open").glob("*.json"))
