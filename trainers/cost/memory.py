"""How much memory is free."""

import contextlib
from pathlib import Path

import torch


def free_bytes(device: torch.device) -> int:
    """Memory that is free on a device; on the CPU what Linux calls available, or what is left of the container's."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(lines["MemAvailable"].split()[0]) * 1024
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):  # no container, or one without a limit ("max")
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        available = min(available, limit - used)
    return available
