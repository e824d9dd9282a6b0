"""What a run adds to its node, compared with bare processes, and what the service takes: proportional bytes (PSS)."""

import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.measurement import proc
from benchmarks.measurement.millrace_runs import SETTLE_S, TIMEOUT_S, Ours, running, spec_of
from benchmarks.measurement.processes import MeasurementError, alone, end, free_port
from benchmarks.measurement.workload import REPOSITORY, Workload
from trainers.events import Metrics

SERVICE_START_S = 60.0
MARK = "MILLRACE_BENCHMARK"
"""Set in the environment of every process of a cluster that is measured."""


@dataclass(frozen=True)
class RunMemory:
    """What a run has added to its node in the middle of training, all its processes together and from a cold start; and
    as many processes as it has workers, at another time, that only built the model."""

    parameter_bytes: int
    workers: int
    run: dict[str, int]
    """Bytes by origin: of workers, coordinator, shards and the server that they are forked from."""
    bare: dict[str, int]

    @property
    def over(self) -> dict[str, float]:
        """By origin, what the run has more a worker, in multiples of the parameters' size; the largest first."""
        origins = {o: self.run.get(o, 0) - self.bare.get(o, 0) for o in {*self.run, *self.bare}}
        unit = self.workers * self.parameter_bytes
        return {o: b / unit for o, b in sorted(origins.items(), key=lambda item: -item[1])}

    @property
    def multiple(self) -> float:
        """All of it together."""
        return sum(self.over.values())


def run_memory(work: Workload, ours: Ours) -> RunMemory:
    """A short job of its own, since reading the maps of a process stops it for a moment."""
    return alone(_drive, replace(work, seconds=4.0), ours, timeout_s=TIMEOUT_S)


def service_memory(pid: int) -> dict[str, int]:
    """`Pss` and `Rss` of a service that runs already, bytes."""
    found = proc.memory_bytes(pid)
    return {name: found[name] for name in ("Pss", "Rss")}


def own_service_memory() -> dict[str, int]:
    """The same of a service of its own, once it answers.

    Raises:
        MeasurementError: It did not start.
    """
    with own_service(free_port()) as (service, _):
        time.sleep(SETTLE_S)
        return service_memory(service.pid)


@contextmanager
def own_service(port: int) -> "Iterator[tuple[subprocess.Popen[bytes], Path]]":
    """`millrace serve` with a cluster and a state of its own that answers, and the folder of its state; both end
    afterwards.

    Raises:
        MeasurementError: It did not start.
    """
    state = Path(tempfile.mkdtemp(prefix="millrace-bench-"))
    millrace = [sys.executable, "-m", "deploy.main", "serve", "--state-dir", str(state)]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": REPOSITORY}
    try:
        with _ended(subprocess.Popen([*millrace, "--port", str(port)], **quiet)) as service:
            _wait_until_ready(service, f"http://127.0.0.1:{port}/healthz")
            yield service, state
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


def _drive(work: Workload, ours: Ours) -> RunMemory:
    parameter_bytes, bare = _bare_processes(work)
    mark = os.environ[MARK] = uuid.uuid4().hex
    before, during = Counter[str](), Counter[str]()

    def look_before() -> None:
        before.update(_together(_marked(mark)))

    with running(work, spec_of(work, ours, round(work.seconds * 2000)), look_before) as (_, follow):
        for event in follow():
            warm = event.type == "step" and Metrics.model_validate(event.data).step > 2 * work.warmup_steps
            if warm and not during:
                during.update(_together(_marked(mark)))
    if not during:
        raise MeasurementError("the job ended before its memory was read")
    added = {origin: during[origin] - before[origin] for origin in during | before}
    return RunMemory(parameter_bytes, work.workers, added, dict(bare))


def _bare_processes(work: Workload) -> tuple[int, Counter[str]]:
    """Bytes of the parameters, and by origin of as many processes as there are workers, which have built the model."""
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    processes = [context.Process(target=_bare, args=(send, work)) for _ in range(work.workers)]
    try:
        for process in processes:
            process.start()
        sizes = [receive.recv() for _ in processes]
        return sizes[0], _together(process.pid or 0 for process in processes)
    finally:
        end(processes)


def _together(pids: Iterable[int]) -> Counter[str]:
    """Proportional bytes of all these processes by origin; of one that has just ended, none."""
    found = Counter[str]()
    for pid in pids:
        with suppress(OSError):
            found.update(proc.composition(pid))
    return found


def _marked(mark: str) -> Iterator[int]:
    """The processes that were started with this mark, or forked from one that was, without this process itself."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                    yield int(entry.name)


def _bare(send: Connection, work: Workload) -> None:
    """Import torch, build the model, tell the size of its parameters, and wait to be ended."""
    import torch

    torch.set_num_threads(1)
    model = work.build_model()
    send.send(sum(p.numel() * p.element_size() for p in model.parameters()))
    time.sleep(TIMEOUT_S)
