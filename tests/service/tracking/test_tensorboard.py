"""TensorBoard's event files, read with another's protobuf and checksums."""

import asyncio
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboardX.crc32c import crc32c  # type: ignore[import-untyped]
from tensorboardX.proto.event_pb2 import Event as Proto  # type: ignore[import-untyped]

from service.jobs.live_log import LiveLog
from service.jobs.local import LocalRun
from service.spec import JobSpec
from service.tracking.tensorboard import FILE_NAME, EventFile
from tests.service.fakes import FakeRuns, whole_run
from trainers.runtime.event_log import FILE_NAME as JOURNAL
from trainers.runtime.event_log import EventLogReader


def read(path: Path) -> list[Any]:
    """The protobufs of a file whose every checksum is right, to its last byte."""
    data, found, offset = path.read_bytes(), [], 0

    def masked(part: bytes) -> int:
        crc = crc32c(part)
        return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF

    while offset < len(data):
        length, checksum = struct.unpack_from("<QI", data, offset)
        assert checksum == masked(data[offset : offset + 8])
        body = data[offset + 12 : offset + 12 + length]
        assert struct.unpack_from("<I", data, offset + 12 + length)[0] == masked(body)
        found.append(Proto.FromString(body))
        offset += length + 16
    return found


def scalars(path: Path, tag: str) -> list[tuple[int, float]]:
    return [(e.step, v.simple_value) for e in read(path) for v in e.summary.value if v.tag == tag]


def written(tmp_path: Path) -> Path:
    """A whole run's folder, by `LocalRun`."""
    runs = FakeRuns(script=whole_run)
    LocalRun(runs, "j", JobSpec(epochs=3), tmp_path / "run").run(lambda _: None)
    runs.close()
    return tmp_path / "run"


def test_a_run_leaves_its_figures_by_examples(tmp_path: Path) -> None:
    run_dir = written(tmp_path)
    header, *events = read(run_dir / FILE_NAME)
    assert header.file_version == "brain.Event:2"
    assert len(events) == 6
    assert scalars(run_dir / FILE_NAME, "train/loss") == [(1000, 0.5), (2000, 0.5), (3000, 0.5)]
    accuracies = scalars(run_dir / FILE_NAME, "test/accuracy")
    assert [(step, round(value, 4)) for step, value in accuracies] == [(1000, 0.901), (2000, 0.902), (3000, 0.903)]
    assert scalars(run_dir / FILE_NAME, "speed/staleness") == [(1000, 0.0)]  # nothing was applied afterwards
    times = [event.time for event in EventLogReader(run_dir).read() if event.type in ("step", "evaluation")]
    assert [event.wall_time for event in events] == times


@pytest.mark.parametrize("cut", [0, 1, 5, 40, 41, 100, 350, 700])
def test_a_writer_that_was_killed_anywhere_leaves_no_gap_and_no_double(tmp_path: Path, cut: int) -> None:
    run_dir = written(tmp_path)
    path = run_dir / FILE_NAME
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    EventFile(run_dir).add(EventLogReader(run_dir).read())
    assert path.read_bytes() == whole


def test_the_service_writes_it_while_it_follows_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    whole = written(tmp_path)
    lines = (whole / JOURNAL).read_bytes().splitlines(keepends=True)
    other = tmp_path / "other"
    other.mkdir()
    for end in (4, len(lines)):  # two services, one after the other
        (other / JOURNAL).write_bytes(b"".join(lines[:end]))
        asyncio.run(LiveLog(other).read())
    assert (other / FILE_NAME).read_bytes() == (whole / FILE_NAME).read_bytes()


def test_a_sweeps_log_makes_no_file(tmp_path: Path) -> None:
    EventFile(tmp_path).add([])
    assert not list(tmp_path.iterdir())


def test_a_full_disk_costs_the_file_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(EventFile, "_append", full)
    run_dir = written(tmp_path)
    assert not (run_dir / FILE_NAME).exists()
    assert list(EventLogReader(run_dir).read())[-1].is_terminal


def test_a_loss_beyond_a_float32_is_infinite(tmp_path: Path) -> None:
    whole = written(tmp_path)
    text = (whole / JOURNAL).read_text().replace('"loss":0.5', '"loss":1e300')
    other = tmp_path / "other"
    other.mkdir()
    (other / JOURNAL).write_text(text)
    EventFile(other).add(EventLogReader(other).read())
    assert {value for _, value in scalars(other / FILE_NAME, "train/loss")} == {float("inf")}


def test_neither_torch_nor_tensorboard_is_imported() -> None:
    program = (
        "import sys, service.tracking.tensorboard, service.jobs.live_log\n"
        "sys.exit(any(n.split('.')[0] in ('torch', 'tensorboard', 'tensorboardX', 'tensorflow') for n in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
