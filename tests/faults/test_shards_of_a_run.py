"""A run's shards die while it trains; it goes on, and says what that cost."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import ray

from tests.faults.test_workers import EXAMPLES, assert_equal, ended_well, has_trained, hurry, spec
from tests.runtime.runs import Watched, start
from trainers import ClusterInfo
from trainers.runtime.cluster import NAMESPACE
from trainers.runtime.control.ending import RETURNS

pytestmark = pytest.mark.long

EPOCHS = 20


def shard_process(watched: Watched, index: int) -> int:
    """That serves a shard now."""
    names = [entry["name"] for entry in ray.util.list_named_actors(all_namespaces=True)]
    (name,) = [name for name in names if name.startswith(f"{watched.run.job_id}/shard/{index}")]
    place = ray.get_actor(name, NAMESPACE).place.options(concurrency_group="control").remote()
    return int(ray.get(place).pid)


def kill_shard(watched: Watched, index: int) -> None:
    os.kill(shard_process(watched, index), signal.SIGKILL)


def train(plan: Path, **fields: Any) -> Any:
    return spec(plan, epochs=EPOCHS, workers={"count": 2, "virtual": 5}, **fields)


def test_a_synchronous_run_whose_shards_die_ends_with_the_same_bits(cluster: ClusterInfo, tmp_path: Path) -> None:
    undisturbed = start("shards-none", train(tmp_path / "none", pause_s=0), tmp_path / "none")
    form = {"name": "sync", "form": "parameter_server"}
    fields = {"algorithm": form, "checkpoint": {"every_epochs": 1}}
    watched = start("shards-sync", train(tmp_path / "plan", **fields), tmp_path)
    for index in (0, 1, 0):
        has_trained(watched)
        kill_shard(watched, index)
        watched.until(lambda e: "goes on at version" in e.data.get("message", ""))
    hurry(tmp_path / "plan")
    found = ended_well(watched, EPOCHS)
    assert_equal(found, ended_well(undisturbed, EPOCHS))
    assert watched.of("result")[0]["lost_updates"] == 0


@pytest.mark.parametrize(
    ("replicas", "algorithm"),
    [
        (1, {"server_rule": "delay_compensated"}),
        (2, {"server_rule": "gap_aware"}),
        (2, {"push": "delta", "steps": 2}),
        (2, {"name": "mixed", "group": 1, "push": "delta", "steps": 2}),
    ],
    ids=["one", "two", "delta", "groups"],
)
def test_an_asynchronous_run_says_how_many_updates_went_with_its_shards(
    cluster: ClusterInfo, tmp_path: Path, replicas: int, algorithm: dict[str, Any]
) -> None:
    fields = {
        "algorithm": {"name": "downpour"} | algorithm,
        "workers": 2,
        "epochs": EPOCHS,
        "ps": {"replicas": replicas},
    }
    watched = start(f"shards-{replicas}-{len(algorithm)}", spec(tmp_path / "plan", **fields), tmp_path)
    for index in (0, 1, 0):
        has_trained(watched, 200)
        kill_shard(watched, index)
        watched.until(lambda e: "goes on at version" in e.data.get("message", ""))
    hurry(tmp_path / "plan")
    ended_well(watched, EPOCHS, EXAMPLES)
    assert (watched.of("result")[0]["lost_updates"] > 0) == (replicas == 1)


def without_copies(plan: Path, **fields: Any) -> Any:
    """One of its shards cannot go back to a version that the others have left behind."""
    return train(plan, algorithm={"name": "sync", "form": "parameter_server"}, ps={"replicas": 1}, **fields)


def test_a_synchronous_run_without_second_copies_goes_back_to_its_last_checkpoint(
    cluster: ClusterInfo, tmp_path: Path
) -> None:
    undisturbed = start("shards-alone", train(tmp_path / "none", pause_s=0), tmp_path / "none")
    watched = start("shards-sync-1", without_copies(tmp_path / "plan", checkpoint={"every_epochs": 2}), tmp_path)
    kept = watched.until(lambda e: e.type == "checkpoint").data["examples"]
    has_trained(watched)
    kill_shard(watched, 0)
    lost = watched.until(lambda e: e.data.get("reason") == "ShardLost")
    assert (lost.data["state"], "no snapshot" in lost.data["message"]) == ("RECOVERING", True)
    again = watched.until(lambda e: e.type == "step")
    assert again.data["examples"] > kept, "from the checkpoint, not from the beginning"
    hurry(tmp_path / "plan")
    assert_equal(ended_well(watched, EPOCHS), ended_well(undisturbed, EPOCHS))


def test_a_run_that_loses_a_shard_again_and_again_and_writes_no_checkpoint_fails(
    cluster: ClusterInfo, tmp_path: Path
) -> None:
    watched = start("shards-sync-0", without_copies(tmp_path / "plan"), tmp_path)
    for _ in range(RETURNS):
        has_trained(watched)
        kill_shard(watched, 0)
        watched.until(lambda e: e.data.get("reason") == "ShardLost")
    has_trained(watched)
    kill_shard(watched, 1)
    end = watched.end().data
    assert (end["state"], end["reason"]) == ("FAILED", "ShardLost")
