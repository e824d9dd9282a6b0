"""Memory of a worker over a bare process, and of the service's process, in proportional bytes (PSS)."""

import multiprocessing
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks import proc
from benchmarks.millrace_runs import SETTLE_S, TIMEOUT_S, Ours, running, spec_of, worker_pids
from benchmarks.processes import MeasurementError, alone, end, free_port
from benchmarks.workload import REPOSITORY, Workload
from trainers.events import Metrics

SERVICE_START_S = 60.0


@dataclass(frozen=True)
class WorkerMemory:
    """A worker in the middle of training and, at the same moment, a process that only built the model."""

    parameter_bytes: int
    worker: dict[str, int]
    bare: dict[str, int]

    @property
    def over(self) -> dict[str, float]:
        """By origin, what the worker has more, in multiples of the parameters' size; the largest first."""
        origins = {o: self.worker.get(o, 0) - self.bare.get(o, 0) for o in {*self.worker, *self.bare}}
        return {o: b / self.parameter_bytes for o, b in sorted(origins.items(), key=lambda item: -item[1])}

    @property
    def multiple(self) -> float:
        """All of it together."""
        return sum(self.over.values())


def worker_memory(work: Workload, ours: Ours) -> WorkerMemory:
    """A short job of its own, since reading the maps of a process stops it for a moment."""
    return alone(_drive, replace(work, seconds=4.0), ours, timeout_s=TIMEOUT_S)


def service_memory(pid: int) -> dict[str, int]:
    """`Pss` and `Rss` of a service that runs already, bytes."""
    found = proc.memory_bytes(pid)
    return {name: found[name] for name in ("Pss", "Rss")}


def own_service_memory() -> dict[str, int]:
    """The same of `millrace serve` with a cluster and a state of its own, once it answers; both end afterwards.

    Raises:
        MeasurementError: It did not start.
    """
    state, port = Path(tempfile.mkdtemp(prefix="millrace-bench-")), free_port()
    millrace = [sys.executable, "-m", "deploy.main", "serve", "--state-dir", str(state)]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": REPOSITORY}
    try:
        with _ended(subprocess.Popen([*millrace, "--port", str(port)], **quiet)) as service:
            _wait_until_ready(service, f"http://127.0.0.1:{port}/healthz")
            time.sleep(SETTLE_S)
            return service_memory(service.pid)
    finally:
        subprocess.run([*millrace, "--stop-cluster"], **quiet, timeout=60, check=False)
        shutil.rmtree(state, ignore_errors=True)


@contextmanager
def _ended(service: "subprocess.Popen[bytes]") -> "Iterator[subprocess.Popen[bytes]]":
    try:
        yield service
    finally:
        service.terminate()
        try:
            service.wait(15)
        except subprocess.TimeoutExpired:
            service.kill()
            service.wait()


def _wait_until_ready(service: "subprocess.Popen[bytes]", url: str) -> None:
    deadline = time.monotonic() + SERVICE_START_S
    while time.monotonic() < deadline:
        if service.poll() is not None:
            raise MeasurementError(f"the service ended with status {service.returncode}")
        try:
            urllib.request.urlopen(url, timeout=2).close()
            return
        except OSError:
            time.sleep(0.2)
    raise MeasurementError(f"the service did not answer within {SERVICE_START_S:g} s")


def _drive(work: Workload, ours: Ours) -> WorkerMemory:
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    bare = context.Process(target=_bare, args=(send, work))
    bare.start()
    try:
        parameter_bytes = receive.recv()
        found, pids = None, list[int]()
        with running(work, spec_of(work, ours, round(work.seconds * 2000))) as (_, follow):
            for event in follow():
                if event.type == "actors":
                    pids = worker_pids(event)
                warm = event.type == "step" and Metrics.model_validate(event.data).step > 2 * work.warmup_steps
                if found is None and warm:
                    found = WorkerMemory(parameter_bytes, proc.composition(pids[0]), proc.composition(bare.pid or 0))
        if found is None:
            raise MeasurementError("the job ended before its memory was read")
        return found
    finally:
        end([bare])


def _bare(send: Connection, work: Workload) -> None:
    """Import torch, build the model, tell the size of its parameters, and wait to be ended."""
    import torch

    torch.set_num_threads(1)
    model = work.build_model()
    send.send(sum(p.numel() * p.element_size() for p in model.parameters()))
    time.sleep(TIMEOUT_S)
