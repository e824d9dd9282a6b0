"""Jobs as MLflow runs, in a real MLflow on SQLite: one a job, and nothing twice, whoever dies in between."""

import asyncio
import queue
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from service.spec import JobSpec
from service.tracking.mirror import TrackedJob, mirror
from service.tracking.mlflow_process import JOB_TAG, JobRun, artifacts_of, left_open
from service.tracking.mlflow_registry import VERSION_TAG, RegisteredVersion, TrackedVersion
from service.tracking.tracker import Tracking
from tests.service.conftest import Managed, eventually, reached, started
from tests.service.fakes import FakeRun, FakeRuns, whole_run
from trainers.events import State

if TYPE_CHECKING:
    from mlflow import MlflowClient

pytestmark = [
    pytest.mark.skipif(find_spec("mlflow") is None, reason="the extra `mlflow` is not installed"),
    pytest.mark.filterwarnings("ignore"),  # MLflow's own
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


@pytest.fixture(scope="module")
def client(uri: str) -> "MlflowClient":
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


@pytest.fixture
def experiment(client: "MlflowClient", uri: str, request: pytest.FixtureRequest) -> str:
    return str(client.create_experiment(request.node.name, artifact_location=artifacts_of(uri)))


@pytest.fixture
def job(tmp_path: Path) -> Iterator[tuple[TrackedJob, FakeRun]]:
    """A job and its run, which has told nothing yet."""
    spec = JobSpec(epochs=3, labels={"team": "blue"})
    run = FakeRun("job1", spec.train, tmp_path / "job1")
    yield TrackedJob(id="job1", name="mine", labels=spec.labels, run_dir=run.run_dir, spec=spec.model_dump()), run
    if run.alive:
        run.die()


def history(client: "MlflowClient", run_id: str, name: str) -> list[tuple[int, float]]:
    return [(metric.step, metric.value) for metric in client.get_metric_history(run_id, name)]


def only(client: "MlflowClient", experiment: str) -> Any:
    (run,) = client.search_runs([experiment])
    return run


def test_a_job_is_one_run_with_its_spec_and_figures(
    client: "MlflowClient", experiment: str, job: tuple[TrackedJob, FakeRun]
) -> None:
    tracked, run = job
    whole_run(run)
    assert JobRun(client, experiment, tracked).go_on()
    found = only(client, experiment)
    assert (found.info.run_name, found.info.status) == ("mine", "FINISHED")
    assert {JOB_TAG: "job1", "team": "blue"}.items() <= found.data.tags.items()
    assert found.data.params["algorithm.name"] == "sync"
    assert found.data.params["epochs"] == "3"
    assert history(client, found.info.run_id, "train/loss") == [(1000, 0.5), (2000, 0.5), (3000, 0.5)]
    assert len(history(client, found.info.run_id, "test/accuracy")) == 3


@pytest.mark.parametrize("lost", ["nothing", "a batch that was logged", "the end"])
def test_one_run_and_nothing_twice_after_a_restart(
    client: "MlflowClient", experiment: str, job: tuple[TrackedJob, FakeRun], lost: str
) -> None:
    tracked, run = job
    run.state(State.RUNNING)
    for epoch in (1.0, 2.0):
        run.step(epoch)
    first = JobRun(client, experiment, tracked)
    assert not first.go_on()
    if lost == "a batch that was logged":  # it was killed before it knew
        run.step(3.0)
        first._log(str(first.run_id), list(first.reader.read()))
    else:
        run.step(3.0)
    run.state(State.FAILED, "Told", "enough")
    if lost == "the end":
        assert first.go_on()
    second = JobRun(client, experiment, tracked)
    assert second.go_on()
    found = only(client, experiment)
    assert found.info.status == "FAILED"
    assert history(client, found.info.run_id, "train/loss") == [(1000, 0.5), (2000, 0.5), (3000, 0.5)]


def test_a_run_that_ended_while_nobody_looked_is_seen_to_its_end(
    client: "MlflowClient", experiment: str, job: tuple[TrackedJob, FakeRun]
) -> None:
    tracked, run = job
    run.state(State.RUNNING)
    JobRun(client, experiment, tracked).go_on()
    run.step(1.0)
    run.state(State.CANCELLED)
    told: queue.SimpleQueue[TrackedJob | None] = queue.SimpleQueue()
    for one in (*left_open(client, experiment), None):
        told.put(one)
    mirror(lambda one: JobRun(client, experiment, one), told)
    found = only(client, experiment)
    assert found.info.status == "KILLED"
    assert history(client, found.info.run_id, "train/loss") == [(1000, 0.5)]


def test_mlflow_may_be_away_for_a_while(
    client: "MlflowClient", experiment: str, job: tuple[TrackedJob, FakeRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    tracked, run = job
    whole_run(run)
    mirrored = JobRun(client, experiment, tracked)
    with monkeypatch.context() as away:
        away.setattr(client, "log_batch", lambda *_, **__: (_ for _ in ()).throw(ConnectionError("away")))
        with pytest.raises(ConnectionError):
            mirrored.go_on()
        with pytest.raises(ConnectionError):
            mirrored.go_on()
    assert mirrored.go_on()
    assert len(history(client, only(client, experiment).info.run_id, "train/loss")) == 3


@pytest.mark.slow
def test_the_service_has_its_jobs_mirrored_by_a_process_that_may_die(
    client: "MlflowClient", experiment: str, uri: str, managed: Managed, runs: FakeRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.tracking.tracker.START_AGAIN_S", 0.0)
    name = client.get_experiment(experiment).name

    async def scenario() -> None:
        tracking = Tracking("mlflow", uri, name)
        tracking.start()
        async with managed(trackers=[tracking]) as manager:
            job, _ = await manager.submit(JobSpec(name="first"))
            run = await started(runs, job.id)
            run.state(State.RUNNING)
            run.step(1.0)
            await eventually(lambda: logged(job.id, 1), within_s=60)
            assert tracking.process is not None
            tracking.process.kill()
            run.step(2.0)
            run.succeed()
            await reached(manager, job.id, State.SUCCEEDED)
            await eventually(lambda: logged(job.id, 2), within_s=60)
            await asyncio.to_thread(tracking.close)
            assert tracking.process.returncode == 0

    async def logged(job_id: str, count: int) -> bool:
        found = client.search_runs([experiment], f"tags.`{JOB_TAG}` = '{job_id}'")
        assert len(found) <= 1
        return bool(found) and len(history(client, found[0].info.run_id, "train/loss")) == count

    asyncio.run(scenario())
    assert only(client, experiment).info.status == "FINISHED"


def test_the_service_itself_does_not_import_it() -> None:
    program = """import sys, service.jobs.manager
import service.tracking.aim_process, service.tracking.mlflow_process, service.tracking.wandb_process
sys.exit(bool({'aim', 'mlflow', 'wandb'} & set(sys.modules)))"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_registered_model_is_a_version_of_mlflow_s_once(
    client: "MlflowClient", experiment: str, job: tuple[TrackedJob, FakeRun], tmp_path: Path
) -> None:
    tracked, run = job
    whole_run(run)
    assert JobRun(client, experiment, tracked).go_on()
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"weights")
    told = TrackedVersion(id="digits@3", name="digits", job="job1", notes="the baseline", sha256="0", file=file)
    for _ in range(2):  # as after a restart
        assert RegisteredVersion(client, experiment, told).go_on()
    assert RegisteredVersion(client, experiment, told.model_copy(update={"job": "gone", "id": "digits@4"})).go_on()
    (found,) = client.search_model_versions("name = 'digits'")
    assert (found.run_id, found.description) == (only(client, experiment).info.run_id, "the baseline")
    assert found.tags[VERSION_TAG] == "digits@3"
    (kept,) = Path(found.source.removeprefix("file://")).iterdir()
    assert kept.read_bytes() == b"weights"
    assert kept.is_relative_to(tmp_path.parent)  # beside the database, and not in the folder where the service began
