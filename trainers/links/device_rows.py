"""Vectors in the memory of a GPU that several processes share: what one of them writes, the others read as it lies."""

import fcntl
import os
import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import torch
import torch.multiprocessing  # teaches the pickler to hand over memory of a GPU, by CUDA IPC
from torch import Tensor


class DeviceRows:
    """`rows` vectors of float32 on a GPU, which all who open the same path share.

    The first to open it takes the memory, full of zeros, and leaves a handle in the file for each of the others, who
    must be on the same GPU. When the one that took it is killed, the others still have it: CUDA does not promise that,
    and `tests/gpu` looks whether it is so.
    """

    def __init__(self, path: Path, rows: int, numel: int, device: torch.device, num_others: int) -> None:
        """num_others: How many more processes will open it, once each."""
        with path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
            if file.seek(0, os.SEEK_END):  # somebody was here before
                file.seek(0)
                *others, mine = pickle.load(file)
                self.rows: Tensor = pickle.loads(mine)
            else:
                self.rows = torch.zeros(rows, numel, device=device)
                torch.cuda.current_stream(device).synchronize()
                others = [bytes(ForkingPickler.dumps(self.rows)) for _ in range(num_others)]
            file.truncate(0)
            pickle.dump(others, file)

    def row(self, index: int) -> Tensor:
        """One of the vectors, (numel,) float32."""
        return self.rows[index]
