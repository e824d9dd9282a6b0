"""A real MLflow server that is killed while a job is mirrored, and started again: nothing is missing or there twice."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import httpx2
import pytest

from benchmarks.measurement.processes import free_port
from service.database.job_store import Job
from service.spec import JobSpec
from service.tracking.tracker import Tracking
from tests.service.fakes import FakeRun
from trainers.events import State

pytestmark = [
    pytest.mark.skipif(find_spec("mlflow") is None, reason="the extra `mlflow` is not installed"),
    pytest.mark.filterwarnings("ignore"),  # MLflow's own
    pytest.mark.long,
    pytest.mark.timeout(600),
]

WITHIN_S = 150.0
SERVER = "from mlflow.cli import cli; cli()"


def soon(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def answers(port: int) -> bool:
    """A connection alone does not tell: one to a port that nobody has can meet itself."""
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/health").is_success
    except httpx2.HTTPError:
        return False


@contextmanager
def served(folder: Path, port: int) -> Iterator[None]:
    """MLflow's server over a database in the folder, until it is killed with all its processes."""
    command = [sys.executable, "-c", SERVER, "server", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    command += ["--default-artifact-root", str(folder), "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    without_jobs = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # which need a package more
    server = subprocess.Popen(command, start_new_session=True, cwd=folder, env=without_jobs)
    try:
        soon(lambda: answers(port))
        yield
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def test_a_server_that_is_killed_misses_nothing_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    from mlflow import MlflowClient

    spec = JobSpec(epochs=3)
    run = FakeRun("job1", spec.train, tmp_path / "job1")
    run.state(State.RUNNING)
    for epoch in (1.0, 2.0):
        run.step(epoch)
    port = free_port()
    fields = spec.model_dump(mode="json")
    job = Job.model_construct(id="job1", name="mine", labels={}, run_dir=run.run_dir, spec=fields)
    client = MlflowClient(tracking_uri=f"http://127.0.0.1:{port}")
    tracking = Tracking("mlflow", f"http://127.0.0.1:{port}", "tried")

    def losses() -> list[tuple[int, float]]:
        experiment = client.get_experiment_by_name("tried")
        found = client.search_runs([experiment.experiment_id]) if experiment else []
        assert len(found) <= 1
        logged = client.get_metric_history(found[0].info.run_id, "train/loss") if found else []
        return [(one.step, one.value) for one in logged]

    tracking.start()
    tracking.follow(job)
    try:
        with served(tmp_path, port):
            soon(lambda: len(losses()) == 2)
        run.step(3.0)
        run.succeed()
        with served(tmp_path, port):
            soon(lambda: len(losses()) == 3)
            experiment = client.get_experiment_by_name("tried").experiment_id
            soon(lambda: client.search_runs([experiment])[0].info.status == "FINISHED")
            assert losses() == [(1000, 0.5), (2000, 0.5), (3000, 0.5)]
    finally:
        tracking.close()
