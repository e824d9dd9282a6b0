"""Whether others computed on the machine meanwhile: what is measured then is not what it would be."""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measurement import proc

KERNEL = 2
"""The parent of its threads, some of which work for us."""


def _cpu_of_others() -> dict[int, float]:
    """CPU seconds of each process that is neither the kernel's nor this one, nor was started by it."""
    ours = {os.getpid(), *proc.descendants(os.getpid()), KERNEL, *proc.descendants(KERNEL)}
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return {pid: proc.cpu_seconds(pid) for pid in pids if pid not in ours}


@dataclass
class Others:
    """What they have computed since this was made."""

    began_s: float = field(default_factory=time.monotonic)
    before: dict[int, float] = field(default_factory=_cpu_of_others)

    def share(self) -> float:
        """Of all cores. Who came and went in between is not seen."""
        used = sum(cpu_s - self.before.get(pid, 0.0) for pid, cpu_s in _cpu_of_others().items())
        cores = len(os.sched_getaffinity(0))
        return max(0.0, used) / (cores * max(time.monotonic() - self.began_s, 1e-9))
