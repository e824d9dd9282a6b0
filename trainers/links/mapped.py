"""Vectors in mapped files: what one process writes, the others on the node read as it lies."""

import mmap
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trainers.disk import writing

BYTES = 4  # of a float32


class MappedFile:
    """A file of `rows` vectors of float32, mapped into memory. The first to open it makes it, full of zeros.

    Raises:
        DiskFull: There is no room for it.
    """

    def __init__(self, path: Path, rows: int, numel: int) -> None:
        self.path = path
        self.numel = numel
        size = max(rows * numel, 1) * BYTES
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            with writing(path):
                os.posix_fallocate(descriptor, 0, size)  # a full file system is an error here, not a SIGBUS later
            # Populated at once: the first touch of a page costs more than the copy of it.
            self.map = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        finally:
            os.close(descriptor)
        self.rows = torch.from_numpy(np.frombuffer(self.map, dtype=np.float32)[: rows * numel].reshape(rows, numel))

    def row(self, index: int) -> Tensor:
        """One of the vectors, (numel,) float32."""
        return self.rows[index]
