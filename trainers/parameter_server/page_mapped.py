"""One vector whose parts lie in different rows of a mapped file, without a copy: the pages are mapped side by side.

A fetch answers with a row of the ring for each shard, and the rows differ. To copy a vector of megabytes at each fetch
costs two trips to memory; to map its pages costs nothing once the same rows have been seen together before.
"""

import ctypes
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trainers.links.mapped import BYTES

PAGE = mmap.PAGESIZE // BYTES
"""Elements a page: where parts may begin and end."""

WINDOWS = 16
"""Combinations of rows that stay mapped: with two workers and two shards, all there are."""

MAP_FIXED = 0x10
FAILED = ctypes.c_void_p(-1).value
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]


class PageMappedRows:
    """Read-only vectors over the rows of a file, each part taken from a row of its own.

    A window is never unmapped, only mapped over, so that a vector which somebody still holds stays readable.
    """

    def __init__(self, path: Path, stride: int, parts: Sequence[slice]) -> None:
        """stride: elements from one row to the next. parts: cut [0, numel); all begin at multiples of `PAGE`."""
        self.file = os.open(path, os.O_RDONLY)
        self.stride = stride
        self.parts = parts
        self.windows: dict[tuple[int, ...], Tensor] = {}  # row of each part -> vector, the one used last at the end

    def vector(self, rows: tuple[int, ...]) -> Tensor:
        """(numel,) float32, part i as it lies in row `rows[i]`; writing to it ends the process."""
        found = self.windows.pop(rows, None)
        if found is None:
            oldest = self.windows.pop(next(iter(self.windows))) if len(self.windows) == WINDOWS else None
            found = self._map(rows, self._reserve() if oldest is None else oldest)
        self.windows[rows] = found
        return found

    def close(self) -> None:
        """Let go of the file. What is mapped stays so until the process ends."""
        os.close(self.file)

    def _reserve(self) -> Tensor:
        """Addresses for one vector, without memory."""
        numel = self.parts[-1].stop
        address = _mapped(None, numel, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        return torch.from_numpy(np.frombuffer((ctypes.c_float * numel).from_address(address), dtype=np.float32))

    def _map(self, rows: tuple[int, ...], window: Tensor) -> Tensor:
        flags = mmap.MAP_SHARED | MAP_FIXED | mmap.MAP_POPULATE
        for row, part in zip(rows, self.parts, strict=True):
            address = window.data_ptr() + part.start * BYTES
            _mapped(address, part.stop - part.start, flags, self.file, row * self.stride + part.start)
        return window


def can_map_pages(parts: Sequence[slice]) -> bool:
    """Whether all parts begin where a page begins."""
    return all(part.start % PAGE == 0 for part in parts)


def _mapped(address: int | None, numel: int, flags: int, file: int, offset: int) -> int:
    found = LIBC.mmap(address, numel * BYTES, mmap.PROT_READ, flags, file, offset * BYTES)
    if found == FAILED:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return int(found)
