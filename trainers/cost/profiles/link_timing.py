"""Times how two workers of this machine add up what both have in memory, by the transport of a run."""

import json
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path

import torch

from trainers.collectives.reduction import Reduction
from trainers.collectives.shared_memory import SharedMemoryCollectives
from trainers.errors import RunFailed

WORKERS = 2
SMALL, LARGE = 1024, 4_000_000
"""Elements of a vector whose bytes do not count, and of one whose bytes do."""
REPEATS, WARM_UPS = 20, 3
MEETINGS = 2
"""Of a reduction and the gathering after it."""


def time_link() -> tuple[float, float]:
    """Latency of a meeting in seconds, and bytes of others' vectors that a worker adds up in a second.

    Raises:
        RunFailed: A process died.
    """
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="millrace-link-") as folder:
        processes = [spawn.Process(target=_work, args=(folder, rank)) for rank in range(WORKERS)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        found = Path(folder, "seconds.json")
        if not found.exists():
            raise RunFailed(f"a process that timed the link died with exit status {processes[0].exitcode}")
        (latency_s, _), (_, adding_s) = json.loads(found.read_text())
    return latency_s, 4 * LARGE / WORKERS / adding_s  # each takes half of the other's vector


def _work(folder: str, rank: int) -> None:
    torch.set_num_threads(1)
    collectives = SharedMemoryCollectives(Path(folder), rank, WORKERS)
    seconds = [reduction_seconds(collectives, numel) for numel in (SMALL, LARGE)]
    collectives.barrier().wait()
    collectives.close()
    if rank == 0:
        Path(folder, "seconds.json").write_text(json.dumps(seconds))


def reduction_seconds(collectives: SharedMemoryCollectives, numel: int) -> tuple[float, float]:
    """Medians: of a meeting, and of adding up one's half of the vector."""
    reduction, meeting, adding = Reduction(WORKERS, WORKERS, numel), list[float](), list[float]()
    parts, span = collectives.parts(reduction), collectives.span(numel)
    for part in parts:
        part.fill_(1.0)
    for _ in range(WARM_UPS + REPEATS):
        begun = time.perf_counter()
        total = collectives.reduce_canonical(reduction, parts).wait()
        met = time.perf_counter()
        total.piece(0, span.stop - span.start)
        added = time.perf_counter()
        collectives.complete().wait()
        meeting.append((met - begun + time.perf_counter() - added) / MEETINGS)
        adding.append(added - met)
    return statistics.median(meeting[WARM_UPS:]), statistics.median(adding[WARM_UPS:])
