"""The metrics of a run as a TensorBoard event file, written without TensorBoard, torch or TensorFlow.

The file is a chain of TFRecords: length, its checksum, a protobuf `Event`, its checksum. Each event of the log that has
figures is one record, so that whoever takes the file up again sees how far it goes. The step is the examples trained.
"""

import logging
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from service.tracking.scalars import Scalars
from trainers import Event

FILE_NAME = "events.out.tfevents.0.millrace"
LENGTH = struct.Struct("<QI")
CHECKSUM = struct.Struct("<I")

logger = logging.getLogger(__name__)


class EventFile:
    """Feed it every event of a run's log once, from the first on. It skips what an earlier process has written."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / FILE_NAME
        self.scalars = Scalars()
        self.behind: int | None = None  # records that are there already; none: nobody has looked yet
        self.broken = False

    def add(self, events: Iterable[Event]) -> None:
        """Append the events with metrics. A full disk ends this file, and nothing else."""
        records = b"".join(_record(body) for event in events if (body := self._figures(event)))
        if self.broken or not records:
            return
        try:
            self._append(records)
        except OSError as error:
            self.broken = True
            logger.warning("%s is not written any more: %s", self.path, error.strerror)

    def _figures(self, event: Event) -> bytes | None:
        """The event as a protobuf; none if it has no figures, or if it was written before."""
        points = self.scalars.points(event)
        if points is None:
            return None
        if self.behind is None:
            self.behind = repair(self.path)
        if self.behind:
            self.behind -= 1
            return None
        summary = b"".join(_field(1, _field(1, tag.encode()) + _float(2, value)) for tag, value in points.items())
        return _double(1, event.time) + _varint(2, int(event.data["examples"])) + _field(5, summary)

    def _append(self, records: bytes) -> None:
        if not self.path.exists():
            records = _record(_double(1, 0.0) + _field(3, b"brain.Event:2")) + records
        with self.path.open("ab") as file:
            file.write(records)


def repair(path: Path) -> int:
    """Cut off a half-written last record. Returns how many there are but for the first, which names the version."""
    if not path.exists():
        return 0
    data = path.read_bytes()
    ends = [end for _, end in records_of(data)]
    if not ends:
        path.unlink()
    elif ends[-1] < len(data):
        os.truncate(path, ends[-1])
    return max(0, len(ends) - 1)


def records_of(data: bytes) -> Iterator[tuple[bytes, int]]:
    """The whole records of a file, and where each ends."""
    offset = 0
    while offset + LENGTH.size <= len(data):
        length, checksum = LENGTH.unpack_from(data, offset)
        body = data[offset + LENGTH.size : offset + LENGTH.size + length]
        end = offset + LENGTH.size + length + CHECKSUM.size
        if end > len(data) or checksum != _masked(data[offset : offset + 8]):
            return
        if CHECKSUM.unpack_from(data, end - CHECKSUM.size)[0] != _masked(body):
            return
        yield body, end
        offset = end


def _record(body: bytes) -> bytes:
    length = struct.pack("<Q", len(body))
    return length + CHECKSUM.pack(_masked(length)) + body + CHECKSUM.pack(_masked(body))


# -- protobuf: the four kinds of fields that an Event has -------------------------------------------------------------


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _varint(field: int, value: int) -> bytes:
    return _number(field << 3) + _number(value)


def _double(field: int, value: float) -> bytes:
    return _number(field << 3 | 1) + struct.pack("<d", value)


def _field(field: int, value: bytes) -> bytes:
    return _number(field << 3 | 2) + _number(len(value)) + value


def _float(field: int, value: float) -> bytes:
    try:
        packed = struct.pack("<f", value)
    except OverflowError:  # beyond a float32, as a diverging loss may be
        packed = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return _number(field << 3 | 5) + packed


# -- CRC-32C (Castagnoli), masked as TFRecord has it ------------------------------------------------------------------


def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)  # noqa: PLW2901
        table.append(value)
    return table


_TABLE = _table()


def _masked(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
