"""A real TensorBoard that is killed while a run's event file grows, and started again: nothing is missing or there
twice."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx2
import pytest

from benchmarks.measurement.processes import free_port
from service.tracking.mirror import TrackedJob
from service.tracking.tensorboard import EventFile
from tests.service.fakes import FakeRun
from trainers.runtime.event_log import EventLogReader

pytestmark = [
    pytest.mark.skipif(find_spec("tensorboard") is None, reason="TensorBoard is not installed"),
    pytest.mark.long,
    pytest.mark.timeout(600),
]

WITHIN_S = 150.0


def soon(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


@contextmanager
def served(folder: Path) -> Iterator[Callable[[], list[tuple[int, float]]]]:
    """TensorBoard over a folder of runs, until it is killed; gives what it shows of a run's training loss."""
    port = free_port()
    options = {"logdir": folder, "host": "127.0.0.1", "port": port, "reload_interval": 1}
    command = [sys.executable, "-m", "tensorboard.main", *(f"--{name}={value}" for name, value in options.items())]
    server = subprocess.Popen(command, start_new_session=True, cwd=folder)
    scalars = f"http://127.0.0.1:{port}/data/plugin/scalars/scalars"

    def losses() -> list[tuple[int, float]]:
        try:
            answer = httpx2.get(scalars, params={"run": "job1", "tag": "train/loss"})
        except httpx2.HTTPError:
            return []
        points: list[tuple[float, int, Any]] = answer.json() if answer.is_success else []
        return [(step, float(value)) for _, step, value in points]

    try:
        yield losses
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def test_a_server_that_is_killed_misses_nothing_when_it_is_back(
    tmp_path: Path, job: tuple[TrackedJob, FakeRun]
) -> None:
    _, run = job
    file = EventFile(run.run_dir)
    file.add(EventLogReader(run.run_dir).read())
    with served(tmp_path) as losses:
        soon(lambda: len(losses()) == 2)
    run.step(3.0)
    run.succeed()
    EventFile(run.run_dir).add(EventLogReader(run.run_dir).read())
    with served(tmp_path) as losses:
        soon(lambda: len(losses()) == 3)
        assert losses() == [(1000, 0.5), (2000, 0.5), (3000, 0.5)]
