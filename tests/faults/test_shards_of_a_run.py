"""A run's shards die while it trains; it goes on, and says what that cost."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import ray

from tests.faults.test_workers import EXAMPLES, assert_equal, ended_well, has_trained, spec
from tests.runtime.runs import Watched, start
from trainers import ClusterInfo
from trainers.runtime.cluster import NAMESPACE

EPOCHS = 20


def kill_shard(watched: Watched, index: int) -> None:
    """The process that serves a shard now."""
    names = [entry["name"] for entry in ray.util.list_named_actors(all_namespaces=True)]
    (name,) = [name for name in names if name.startswith(f"{watched.run.job_id}/shard/{index}")]
    place = ray.get_actor(name, NAMESPACE).place.options(concurrency_group="control").remote()
    os.kill(ray.get(place).pid, signal.SIGKILL)


def train(plan: Path, **fields: Any) -> Any:
    return spec(plan, epochs=EPOCHS, workers={"count": 2, "virtual": 5}, **fields)


@pytest.mark.timeout(200)
def test_a_synchronous_run_whose_shards_die_ends_with_the_same_bits(cluster: ClusterInfo, tmp_path: Path) -> None:
    undisturbed = start("shards-none", train(tmp_path / "none", pause_s=0), tmp_path / "none")
    form = {"name": "sync", "form": "parameter_server"}
    watched = start("shards-sync", train(tmp_path / "plan", algorithm=form), tmp_path)
    for index in (0, 1, 0):
        has_trained(watched)
        kill_shard(watched, index)
        watched.until(lambda e: "goes on at version" in e.data.get("message", ""))
    found = ended_well(watched, EPOCHS)
    assert_equal(found, ended_well(undisturbed, EPOCHS))
    assert watched.of("result")[0]["lost_updates"] == 0


@pytest.mark.timeout(200)
@pytest.mark.parametrize("replicas", [1, 2])
def test_an_asynchronous_run_says_how_many_updates_went_with_its_shards(
    cluster: ClusterInfo, tmp_path: Path, replicas: int
) -> None:
    fields = {"algorithm": "downpour", "workers": 2, "epochs": EPOCHS, "ps": {"replicas": replicas}}
    watched = start(f"shards-{replicas}", spec(tmp_path / "plan", **fields), tmp_path)
    for index in (0, 1, 0):
        has_trained(watched, 200)
        kill_shard(watched, index)
        watched.until(lambda e: "goes on at version" in e.data.get("message", ""))
    ended_well(watched, EPOCHS, EXAMPLES)
    assert (watched.of("result")[0]["lost_updates"] > 0) == (replicas == 1)


@pytest.mark.timeout(200)
def test_a_synchronous_run_without_second_copies_fails_and_says_why(cluster: ClusterInfo, tmp_path: Path) -> None:
    """One shard cannot go back to a version that the others have left behind."""
    form = {"name": "sync", "form": "parameter_server"}
    watched = start("shards-sync-1", train(tmp_path / "plan", algorithm=form, ps={"replicas": 1}), tmp_path)
    has_trained(watched)
    kill_shard(watched, 0)
    end = watched.end().data
    assert (end["state"], end["reason"]) == ("FAILED", "RunFailed")
    assert "no snapshot" in end["message"]
