"""What the figures were measured on. No host names, no paths."""

import os
import platform
import re
import subprocess
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks.measurement.workload import REPOSITORY


def describe() -> dict[str, str]:
    """Hardware, versions, commit, load and time."""
    cpu = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = re.search(r"^MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return {
        "processor": f"{cpu.group(1) if cpu else platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        "memory": f"{int(memory.group(1)) / 2**20:.0f} GiB" if memory else "unknown",
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "versions": ", ".join(
            [f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in ("torch", "ray", "numpy"))]
        ),
        "commit": commit(),
        "time": datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %z"),
    }


def maker() -> str:
    """Of the processor, in a word for a file's name: "amd", "intel", or the architecture."""
    vendor = re.search(r"^vendor_id\s*:\s*(\S+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    names = {"AuthenticAMD": "amd", "GenuineIntel": "intel"}
    return names.get(vendor.group(1) if vendor else "", platform.machine())


def load() -> str:
    """Load average over the last 1, 5 and 15 minutes."""
    return " ".join(f"{value:.2f}" for value in os.getloadavg())


def disturbed(before: str) -> str:
    """What is to be said of a run that began while others computed; nothing where nobody did."""
    cores, found = len(os.sched_getaffinity(0)), before.partition(" ")[0]
    if float(found) < cores / 2:
        return ""
    return (
        f"Others computed on the machine: the load average was {found} on {cores} cores before it began. Times are "
        "longer than on a quiet one, and so are CPU seconds, since the caches are shared."
    )


def commit() -> str:
    """The commit that is checked out, and whether files differ from it."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(REPOSITORY), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    changed = [line for line in git("status", "--porcelain").splitlines() if "benchmarks/results/" not in line]
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + (" with local changes" if changed else "")
