"""Memory of a GPU that several processes share, and what happens to it when one of them dies."""

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from trainers.collectives.reduction import Reduction
from trainers.collectives.shared_memory import SharedMemoryCollectives
from trainers.errors import PeerLost
from trainers.links.device_rows import DeviceRows

GPU = torch.device("cuda", 0)


def hold(path: Path, told: Connection) -> None:
    """Take the memory, fill it, and wait to be killed."""
    rows = DeviceRows(path, 2, 1_000_000, GPU, num_others=1)
    rows.row(1).fill_(7.0)
    torch.cuda.synchronize()
    told.send("filled")
    told.recv()


def test_what_a_killed_process_wrote_stays(tmp_path: Path) -> None:
    """CUDA does not promise it; where this fails, a worker that dies costs the run a checkpoint's distance."""
    here, there = multiprocessing.Pipe()
    other = multiprocessing.get_context("spawn").Process(target=hold, args=(tmp_path / "rows", there), daemon=True)
    other.start()
    assert here.recv() == "filled"
    mine = DeviceRows(tmp_path / "rows", 2, 1_000_000, GPU, num_others=1)
    assert other.pid is not None
    os.kill(other.pid, signal.SIGKILL)
    other.join()
    taken = torch.full((200_000_000,), 3.0, device=GPU)  # who would overwrite what is free
    assert bool((mine.row(1) == 7.0).all())
    mine.row(0).fill_(2.0)
    assert float(mine.row(0).sum()) == 2_000_000.0
    del taken


def die_in_the_second_step(folder: Path) -> None:
    one = SharedMemoryCollectives(folder, 1, 2, device=GPU)
    reduction = Reduction(2, 2, 1000)
    (part,) = one.parts(reduction)
    part.fill_(1.0)
    one.reduce_canonical(reduction, [part]).wait()
    one.barrier().wait()
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_death_of_a_worker_is_noticed_and_leaves_the_sum_that_was_whole(tmp_path: Path) -> None:
    other = multiprocessing.get_context("spawn").Process(target=die_in_the_second_step, args=(tmp_path,), daemon=True)
    other.start()
    mine, reduction = SharedMemoryCollectives(tmp_path, 0, 2, device=GPU), Reduction(2, 2, 1000)
    (part,) = mine.parts(reduction)
    part.fill_(2.0)
    total = mine.reduce_canonical(reduction, [part]).wait()
    found = total.piece(0, 500).clone()
    mine.barrier().wait()
    try:
        mine.reduce_canonical(reduction, [part]).wait()
        lost = False
    except PeerLost:
        lost = True
    mine.close()
    other.join()
    assert lost
    assert bool((found == 3.0).all())
