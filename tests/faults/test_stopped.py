"""Processes that are stopped (SIGSTOP) are found and replaced, whichever of a run's they are."""

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
import torch

from tests.faults.test_shards_of_a_run import shard_process
from tests.faults.test_workers import FORMS, assert_equal, coordinator, ended_well, has_trained, hurry, spec
from tests.runtime.runs import soon, start
from trainers import ClusterInfo
from trainers.runtime.actor_handles import kill_run
from trainers.runtime.cluster import NAMESPACE
from trainers.runtime.node_folder import where
from trainers.runtime.nodes import process_of

pytestmark = pytest.mark.long

EPOCHS = 40
WORKERS: dict[str, Any] = {"count": 2, "virtual": 5}


@pytest.fixture(scope="module")
def undisturbed(cluster: ClusterInfo, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    folder = tmp_path_factory.mktemp("undisturbed")
    return ended_well(start("stopped-none", spec(folder / "plan", pause_s=0, workers=WORKERS), folder), EPOCHS)


def test_a_coordinator_that_is_stopped_is_replaced(
    cluster: ClusterInfo, tmp_path: Path, undisturbed: dict[str, torch.Tensor]
) -> None:
    plan = tmp_path / "plan"
    watched = start("stopped-coordinator", spec(plan, pause_s=0.1, workers=WORKERS), tmp_path)
    has_trained(watched)
    os.kill(coordinator(watched), signal.SIGSTOP)
    watched.until(lambda e: e.data.get("reason") == "CoordinatorDied")
    hurry(plan)
    assert_equal(ended_well(watched, EPOCHS), undisturbed)
    assert not watched.of("fault"), "nobody else was taken for dead"


def test_a_coordinator_that_is_stopped_before_it_has_actors_is_replaced(cluster: ClusterInfo, tmp_path: Path) -> None:
    """There is nobody yet but the service who could find it."""
    plan = tmp_path / "plan"
    watched = start("stopped-early", spec(plan, pause_s=0, workers=WORKERS, epochs=2), tmp_path)
    hurry(plan)
    soon(lambda: process_of(watched.run.coordinator) is not None)
    found = process_of(watched.run.coordinator)
    assert found is not None
    os.kill(found[1], signal.SIGSTOP)
    assert watched.run.is_alive()  # what it asks of Ray, and what it does then
    ended_well(watched, 2)


def test_a_shard_that_is_stopped_is_replaced(
    cluster: ClusterInfo, tmp_path: Path, undisturbed: dict[str, torch.Tensor]
) -> None:
    plan = tmp_path / "plan"
    watched = start("stopped-shard", spec(plan, workers=WORKERS, **FORMS["parameter_server"]), tmp_path)
    has_trained(watched)
    os.kill(shard_process(watched, 0), signal.SIGSTOP)
    fault = watched.until(lambda e: e.type == "fault" and e.data["actor"] == "stopped-shard/shard/0")
    assert fault.data["why"].endswith("its process is stopped")
    watched.until(lambda e: "goes on at version" in e.data.get("message", ""))
    hurry(plan)
    assert_equal(ended_well(watched, EPOCHS), undisturbed)


def test_an_evaluator_that_is_stopped_is_replaced(cluster: ClusterInfo, tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    fields = {"evaluate": {"every_epochs": 1}, "workers": WORKERS, "epochs": 6}
    watched = start("stopped-evaluator", spec(plan, **fields), tmp_path)
    watched.until(lambda e: e.type == "evaluation")
    place = ray.get(ray.get_actor("stopped-evaluator/evaluator", NAMESPACE).place.remote())
    os.kill(place.pid, signal.SIGSTOP)
    watched.until(lambda e: e.type == "fault" and e.data["actor"].endswith("evaluator"))
    hurry(plan)
    ended_well(watched, 6)


def test_actors_whose_coordinator_will_not_come_back_end_and_leave_no_files(
    cluster: ClusterInfo, tmp_path: Path
) -> None:
    watched = start("stopped-orphans", spec(tmp_path / "plan", workers=WORKERS, **FORMS["parameter_server"]), tmp_path)
    has_trained(watched)
    (actors,) = watched.of("actors")
    processes = [one["pid"] for kind in ("workers", "shards") for one in actors[kind]]
    assert all(psutil.pid_exists(pid) for pid in processes)
    ray.kill(watched.run.coordinator)
    soon(lambda: not any(psutil.pid_exists(pid) for pid in processes))
    assert not where("stopped-orphans").exists()
    kill_run("stopped-orphans")  # the placement groups, which nobody else removes
