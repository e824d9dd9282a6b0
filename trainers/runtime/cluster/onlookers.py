"""Those of Ray's processes that only look on."""

import contextlib
import os
import re
from pathlib import Path

from trainers.runtime.processes import descendants

ONLOOKER = re.compile(rb"(?![^\0]*raylet\0).*(dashboard|monitor\.py|DashboardAgent)", re.DOTALL)
"""The command lines of processes of Ray's that only look on. The raylet's own command line names its agents too, but
must not match: the processes that it starts inherit its priority."""
ONLOOKERS_NICENESS = 10


def give_way(root: int) -> None:
    """Lower the priority of those of Ray's processes that only look on (dashboard, its agent, monitors): a worker that
    one of them interrupts keeps all the other workers waiting."""
    for pid, _ in descendants(root):
        with contextlib.suppress(OSError):  # it has ended
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            for thread in os.listdir(f"/proc/{pid}/task") if ONLOOKER.match(command) else ():
                os.setpriority(os.PRIO_PROCESS, int(thread), ONLOOKERS_NICENESS)
