"""How often the kernel has ended a process for want of memory: it tells the one that it ends nothing, and counts."""

import asyncio
from contextlib import suppress
from pathlib import Path

from trainers.runtime.nodes import ask_on

ENDED = "was ended by the kernel for want of memory"
REMEDY = (
    "take a smaller batch.per_worker (a larger workers.virtual keeps the batch of a step), fewer workers a node "
    "(a larger workers.cpus), or a smaller data.memory_limit_bytes"
)


def memory_kills(root: Path = Path("/")) -> int:
    """Processes that the kernel's OOM killer has ended so far, in this process's control group where that counts them,
    and otherwise on the machine; -1 where nobody counts. root: Of the file system."""
    for path in (*_of_groups(root), root / "proc/vmstat"):
        with suppress(OSError, ValueError):
            for line in path.read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
    return -1


def _of_groups(root: Path) -> list[Path]:
    """Files that may hold the count, the nearest first: of version 2 of control groups, and of version 1. A container
    may see its own group at the top, whatever its name is outside."""
    found, top = [], root / "sys/fs/cgroup"
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if not controllers:
                found += [top / group.lstrip("/") / "memory.events", top / "memory.events"]
            elif "memory" in controllers.split(","):
                v1 = top / "memory"
                found += [v1 / group.lstrip("/") / "memory.oom_control", v1 / "memory.oom_control"]
    return found


async def ended_for_memory(known: tuple[str, int] | None) -> bool:
    """Whether the count has gone up on the actor's node since the actor last answered.

    known: Its node, and the count then; None where it has never answered, so that nobody knows.
    """
    if known is None:
        return False
    node, before = known
    now = await asyncio.to_thread(ask_on, node, memory_kills)
    return now is not None and before >= 0 and now > before
