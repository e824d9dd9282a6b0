"""The event log where writes fail."""

import errno
import logging
import os
from pathlib import Path

import pytest

from trainers import EventLog, EventLogReader
from trainers.runtime.event_log import FILE_NAME, RESERVE_BYTES, RESERVE_NAME, repair


class FullDisk:
    """A file on a disk that takes so many bytes more; a write that does not fit is written in part."""

    def __init__(self, log: EventLog) -> None:
        self.file, self.room = log.file, 10**9

    def write(self, line: bytes) -> int:
        fits = line[: self.room]
        self.room -= len(fits)
        if not fits:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.file.write(fits)

    def __getattr__(self, name: str) -> object:
        return getattr(self.file, name)


def write(log: EventLog, *messages: str) -> None:
    for message in messages:
        log.append("log", {"level": "info", "message": message})


def read(folder: Path) -> list[tuple[int, str]]:
    return [(event.seq, event.data["message"]) for event in EventLogReader(folder).read()]


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_a_disk_that_is_full_for_a_moment_tears_nothing(tmp_path: Path, failures: int) -> None:
    """Also where several writes fail one after the other, each at another place of its line."""
    log = EventLog(tmp_path)
    log.file = disk = FullDisk(log)  # type: ignore[assignment]
    write(log, "first", "second")
    for room in range(20, 20 * failures + 1, 20):
        disk.room = room
        with pytest.raises(OSError, match="No space left"):
            write(log, "lost")
    disk.room = 10**9
    write(log, "third")
    log.close()
    assert read(tmp_path) == [(1, "first"), (2, "second"), (3, "third")]
    assert repair(tmp_path / FILE_NAME) == 3


def test_there_is_room_for_the_last_event_on_a_full_disk(tmp_path: Path) -> None:
    log = EventLog(tmp_path)
    log.file = disk = FullDisk(log)  # type: ignore[assignment]
    write(log, "first")
    disk.room = 0
    with pytest.raises(OSError, match="No space left"):
        write(log, "lost")
    reserve = tmp_path / RESERVE_NAME
    disk.room = reserve.stat().st_size
    assert disk.room == RESERVE_BYTES
    log.append_last("log", {"level": "info", "message": "last"})
    assert not reserve.exists()
    log.close()
    assert read(tmp_path) == [(1, "first"), (2, "last")]


def test_a_log_that_is_torn_is_read_on_after_the_tear(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog(tmp_path)
    write(log, "first", "second", "third")
    log.close()
    first, second, third = (tmp_path / FILE_NAME).read_bytes().splitlines(keepends=True)
    (tmp_path / FILE_NAME).write_bytes(first + second[:45] + second + third[:30] + b"\n" + third)
    with caplog.at_level(logging.WARNING):
        assert read(tmp_path) == [(1, "first"), (2, "second"), (3, "third")]
    assert len(caplog.records) == 2
    assert all("a failed write has torn a line" in record.message for record in caplog.records)
    (tmp_path / FILE_NAME).write_bytes(first + second[:45] + second + third[:30] + b"\n")
    assert repair(tmp_path / FILE_NAME) == 2
