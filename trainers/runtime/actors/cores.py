"""The cores of this machine, as Linux tells them, and how a thread keeps to some of them."""

import os
from pathlib import Path

from trainers.elastic.binding import CoreMap

SYSTEM = Path("/sys/devices/system")


def core_map(system: Path = SYSTEM) -> CoreMap:
    """What this process may use; nothing where the system does not say how the cores lie."""
    if not hasattr(os, "sched_getaffinity"):
        return CoreMap()
    allowed = os.sched_getaffinity(os.getpid())
    nodes = []
    try:
        for node in sorted(system.glob("node/node[0-9]*"), key=lambda path: int(path.name.removeprefix("node"))):
            here = _numbers((node / "cpulist").read_text()) & allowed
            cores = {tuple(sorted(_siblings(system, cpu) & here)) for cpu in here}
            if cores:
                nodes.append(tuple(sorted(cores)))
    except (OSError, ValueError):  # a container may hide them
        return CoreMap()
    return CoreMap(tuple(nodes))


def keep_to(cpus: tuple[int, ...]) -> None:
    """Have this thread, and those that it starts from now on, run on these logical CPUs only; none: on all that the
    process may use."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus or os.sched_getaffinity(os.getpid()))


def _siblings(system: Path, cpu: int) -> set[int]:
    return _numbers((system / f"cpu/cpu{cpu}/topology/thread_siblings_list").read_text())


def _numbers(listed: str) -> set[int]:
    """Of a list as the kernel writes it: `0-3,8`."""
    found = set[int]()
    for part in listed.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            found |= set(range(int(first), int(last or first) + 1))
    return found
