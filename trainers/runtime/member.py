"""What every actor of a run but the coordinator has: a name, a folder on its node, a lease on its life."""

import logging
import os
import threading
import time

from trainers.runtime.messages import Place
from trainers.runtime.node_folder import sweep

LEASE_S = 30.0
"""An actor that no coordinator has heard of for so long ends itself."""


class Member:
    """Root of the actors' classes. Its methods answer while the actor's long call (`train`, `serve`) runs."""

    def __init__(self, name: str, job_id: str) -> None:
        self.name = name
        self.job_id = job_id
        self.renewed = time.monotonic()
        for handler in logging.getLogger().handlers:
            handler.addFilter(self._sign)
        threading.Thread(target=self._watch, name="lease", daemon=True).start()

    def renew(self) -> None:
        """The coordinator lives."""
        self.renewed = time.monotonic()

    def place(self) -> Place:
        """Where this actor lives."""
        import ray

        context = ray.get_runtime_context()
        node_id, actor_id = context.get_node_id(), context.get_actor_id() or ""
        return Place(self.name, node_id, ray.util.get_node_ip_address(), os.getpid(), actor_id)

    def sweep(self) -> None:
        """Remove the run's folder on this node."""
        sweep(self.job_id)

    def _sign(self, record: logging.LogRecord) -> bool:
        """Give a line of the log this actor's name and job."""
        record.job, record.worker = self.job_id, self.name
        return True

    def _watch(self) -> None:
        while time.monotonic() - self.renewed < LEASE_S:
            time.sleep(LEASE_S / 10)
        sweep(self.job_id)
        os._exit(1)


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
