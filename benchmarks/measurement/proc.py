"""What Linux says about a process: CPU seconds, memory by origin, descendants. Reads /proc, needs no package."""

import os
import re
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

_HEADER = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+\s*(.*)$")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
LOWEST = 19
"""Of priorities, as `nice` counts them."""
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def exists(pid: int) -> bool:
    """Whether there is such a process, and not only its exit status."""
    try:
        return _stat(pid)[0] not in "ZX"
    except OSError:
        return False


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads so far; 0 for a process that is gone."""
    try:
        fields = _stat(pid)
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def stand_back(pid: int) -> None:
    """Have a process, with all its threads, run only where others leave it a core: the lowest priority.

    Linux weighs sessions against each other where it groups processes by them, and threads otherwise.
    """
    with suppress(OSError):  # it is gone, or the system groups none
        Path(f"/proc/{pid}/autogroup").write_text(str(LOWEST))
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, int(thread.name), LOWEST)


def title(pid: int) -> str:
    """The command line as the process shows it; empty for one that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def descendants(pid: int) -> list[int]:
    """Children, their children, and so on, parents first."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                children[int(_stat(int(entry.name))[1])].append(int(entry.name))
            except OSError:
                continue
    found = [pid]
    for each in found:
        found.extend(children[each])
    return found[1:]


def memory_bytes(pid: int) -> dict[str, int]:
    """Resident (`Rss`) and proportional (`Pss`: shared pages divided among those who map them) bytes and others."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {name: int(value.split()[0]) * 1024 for name, _, value in (line.partition(":") for line in lines)}


def resident_bytes(pid: int) -> int:
    """The same `Rss`, to within some pages, at no cost to the process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES


def composition(pid: int) -> dict[str, int]:
    """Proportional bytes by origin: private memory, libraries, other files, and each kind of shared segment."""
    total: dict[str, int] = defaultdict(int)
    origin = ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if header := _HEADER.match(line):
            origin = _origin(header.group(1))
        elif line.startswith("Pss:"):
            total[origin] += int(line.split()[1]) * 1024
    return dict(sorted(total.items(), key=lambda item: -item[1]))


def _origin(name: str) -> str:
    """The name of a mapping without the machine's folders and the run's numbers."""
    path = name.removesuffix(" (deleted)")
    if not path or path.startswith(("[", "/dev/zero")):
        return "private memory"
    if path.startswith(("/dev/shm/", "/memfd:")):
        leaf = re.sub(r"[0-9a-f]{6,}|\d+", "*", path.removeprefix("/memfd:").rsplit("/", 1)[-1])
        return "Ray's object store" if leaf.startswith("plasma") else f"segment {leaf}"
    if re.search(r"\.so(\.|$)", path) or "/bin/" in path:
        return "libraries"
    return "other files"


def _stat(pid: int) -> list[str]:
    """The fields after the name: state, parent, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
