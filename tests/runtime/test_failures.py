"""Bad input, no room and dying processes: a clear end within seconds, and nothing left behind."""

import os
import signal
from pathlib import Path

import pytest
import ray

import trainers
from tests.runtime.runs import finished, gone_soon, left_behind, spec, start
from trainers import NO_ROOM, SpecRejected
from trainers.runtime.cluster import NAMESPACE
from trainers.runtime.processes import start_ticks

pytestmark = pytest.mark.usefixtures("cluster")

CODE = str(Path(__file__).parent / "code")


def test_data_that_is_not_there(tmp_path: Path) -> None:
    run = finished("no-data", spec(data={"name": "mnist", "root": str(tmp_path / "nowhere")}), tmp_path / "run")
    end = run.events[-1].data
    assert (end["state"], end["reason"]) == ("FAILED", "DataNotFound")
    assert str(tmp_path / "nowhere") in end["message"]
    assert "data.download" in end["message"]
    gone_soon("no-data", [])


def test_a_model_function_that_raises(tmp_path: Path) -> None:
    run = finished("raises", spec(code=CODE, model="nets:raises"), tmp_path)
    end = run.events[-1].data
    assert (end["state"], end["reason"]) == ("FAILED", "UserCodeFailed")
    errors = [log["message"] for log in run.of("log") if log["level"] == "error"]
    assert any("the moon is in the wrong phase" in message and "nets.py" in message for message in errors)
    gone_soon("raises", [])


def test_a_loss_that_becomes_nan_says_step_and_learning_rate(tmp_path: Path) -> None:
    train = spec(code=CODE, model="nets:diverging", optimizer={"name": "sgd", "lr": 0.25}, algorithm="downpour")
    run = finished("nan", train, tmp_path)
    end = run.events[-1].data
    assert (end["state"], end["reason"]) == ("FAILED", "LossNotFinite")
    assert "in step 1 " in end["message"]
    assert "learning rate 0.25" in end["message"]
    printed = [log["message"] for log in run.of("log") if log.get("actor", "").startswith("worker/")]
    assert "a model that diverges" in printed
    gone_soon("nan", [])


@pytest.mark.parametrize(
    "algorithm",
    ["sync", pytest.param("downpour", marks=pytest.mark.long), pytest.param("mixed", marks=pytest.mark.slow)],
)
def test_a_killed_worker_is_replaced_and_nothing_is_left(tmp_path: Path, algorithm: str) -> None:
    run = start(f"kill-{algorithm}", spec(algorithm=algorithm, epochs=100_000), tmp_path)
    run.until(lambda event: event.type == "step" and event.data["step"] > 20)
    (actors,) = run.of("actors")
    os.kill(actors["workers"][1]["pid"], signal.SIGKILL)
    run.until(lambda event: event.type == "fault")
    run.until(lambda event: event.type == "resize")
    run.run.cancel()
    assert run.end().data["state"] == "CANCELLED"
    gone_soon(f"kill-{algorithm}", [a["pid"] for a in (*actors["workers"], *actors["shards"], actors["coordinator"])])


def test_a_killed_coordinator_is_swept(tmp_path: Path) -> None:
    run = start("headless", spec(algorithm="downpour", epochs=100_000), tmp_path)
    run.until(lambda event: event.type == "step")
    (actors,) = run.of("actors")
    os.kill(actors["coordinator"]["pid"], signal.SIGKILL)
    trainers.cleanup_run("headless")
    gone_soon("headless", [a["pid"] for a in (*actors["workers"], *actors["shards"])])


def test_a_coordinator_is_gone_once_its_run_is_cleaned_up() -> None:
    """Ray calls an actor dead before its process is, which would go on to reserve room for workers that have died."""

    @ray.remote(num_cpus=0)
    class Lingers:
        def pid(self) -> int:
            return os.getpid()

    named = {"name": "lingers/coordinator", "namespace": NAMESPACE, "lifetime": "detached"}
    pid = ray.get(Lingers.options(**named).remote().pid.remote())
    os.kill(pid, signal.SIGSTOP)  # it does not hear that it is to end
    trainers.cleanup_run("lingers")
    assert start_ticks(pid) is None
    assert left_behind("lingers") == []


def test_user_code_may_not_hide_our_packages(tmp_path: Path) -> None:
    (tmp_path / "service.py").write_text("")
    with pytest.raises(SpecRejected, match="would hide Millrace's own package `service`"):
        trainers.start_run("hides", spec(code=str(tmp_path)), tmp_path / "run")


def test_preflight_finds_what_needs_the_model(tmp_path: Path) -> None:
    with pytest.raises(SpecRejected, match="8x8 pixels"):
        trainers.preflight(spec(model="alexnet"))
    with pytest.raises(SpecRejected, match="use at most"):
        trainers.preflight(spec(algorithm="downpour", ps=1024))
    with pytest.raises(SpecRejected, match="no checkpoint in"):
        trainers.preflight(spec(checkpoint={"resume": str(tmp_path)}))


def test_cancel_before_the_first_step(tmp_path: Path) -> None:
    run = start("early", spec(workers={"count": 9}), tmp_path)  # one more than the cluster's CPUs: it waits
    run.until(lambda event: event.data.get("state") == "STARTING")
    run.run.cancel()
    assert run.end().data["state"] == "CANCELLED"
    gone_soon("early", [])


@pytest.mark.long
def test_one_worker_more_than_the_cluster_holds(tmp_path: Path) -> None:
    watched = start("roomless", spec(workers={"count": 9, "virtual": 9}), tmp_path)
    said = watched.until(lambda event: event.data.get("reason") == NO_ROOM).data
    assert said["state"] == "STARTING"
    assert said["message"] == "waits for the cluster to grow: 1 of 9 workers of 1 CPU has no room yet"
    watched.run.cancel()
    assert watched.end().data["message"] == "cancelled before the first step"
    gone_soon("roomless", [])
