"""What every actor of a run but the coordinator has: a name, a folder on its node, a lease on its life."""

import os
import shutil
import threading
import time
from pathlib import Path

from trainers.runtime.messages import Place

LEASE_S = 30.0
"""An actor that no coordinator has heard of for so long ends itself."""

SHARED_MEMORY = Path("/dev/shm")
LEAST_SHARED_MEMORY_BYTES = 1024**3
"""A shared-memory file system smaller than this (64 MB in a container by default) is not used."""


class Member:
    """Root of the actors' classes. Its methods answer while the actor's long call (`train`, `serve`) runs."""

    def __init__(self, name: str, job_id: str) -> None:
        self.name = name
        self.job_id = job_id
        self.renewed = time.monotonic()
        threading.Thread(target=self._watch, name="lease", daemon=True).start()

    def renew(self) -> None:
        """The coordinator lives."""
        self.renewed = time.monotonic()

    def place(self) -> Place:
        """Where this actor lives."""
        import ray

        context = ray.get_runtime_context()
        return Place(self.name, context.get_node_id(), ray.util.get_node_ip_address(), os.getpid())

    def sweep(self) -> None:
        """Remove the run's folder on this node."""
        sweep(self.job_id)

    def _watch(self) -> None:
        while time.monotonic() - self.renewed < LEASE_S:
            time.sleep(LEASE_S / 10)
        sweep(self.job_id)
        os._exit(1)


def node_folder(job_id: str) -> Path:
    """The run's folder on this node, in shared memory where that is large enough. The same for all its processes."""
    root = SHARED_MEMORY
    if not root.is_dir() or shutil.disk_usage(root).total < LEAST_SHARED_MEMORY_BYTES:
        root = Path("/tmp")
    return root / f"millrace-{job_id}"


def sweep(job_id: str) -> None:
    """Remove the run's folder on this node, if there is one."""
    shutil.rmtree(node_folder(job_id), ignore_errors=True)


def use_code(code: bool) -> None:
    """Put a user's working directory, which Ray puts first, behind everything else on the path."""
    import sys

    if code:
        here = os.getcwd()
        sys.path[:] = [entry for entry in sys.path if entry not in (here, "")] + [here]


def limit_threads(count: int) -> None:
    """Fix the threads of torch before it is imported: its libraries choose their kernels, and with them the bits, by
    the number they find then, not by what is set later."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(count)
