"""`python -m tests.runtime.raylets SCENARIO FOLDER`: a run on several raylets of this machine, one of whose workers is
killed and one of whose raylets is removed. Prints what happened, as JSON.

A process of its own, because a process is connected to one Ray at a time.
"""

import json
import logging
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from ray._private import services
from ray._private.state import state
from ray.cluster_utils import Cluster

import trainers
from benchmarks.measurement.processes import free_port
from tests.faults import test_workers
from tests.faults.test_workers import EXAMPLES, coordinator, fault, has_trained, hurry, resized, strike
from tests.runtime.runs import WITHIN_S, Watched, start
from trainers import TrainSpec
from trainers.models.weights import load_weights
from trainers.runtime.cluster.connection import RAYLET_ENVIRONMENT

SYNC = {"name": "sync", "form": "parameter_server"}
CPUS = 2
"""Of each raylet beside the head, which has none."""
STATISTICS = ("running_", "num_batches_tracked")
"""Of the model's batch norm: those of a worker that is lost with its node are lost, too."""


def spec(plan: Path, pause_s: float = 0.01, **fields: Any) -> TrainSpec:
    """As where workers die on one node; but what the raylets of one machine keep of a user's `code`, they remove from
    under each other."""
    kwargs = test_workers.spec(plan, pause_s, **fields).model.kwargs
    model = {"name": "tests.faults.code.faulty:struck", "kwargs": kwargs}
    return test_workers.spec(plan, code=None, model=model, **fields)


def be_patient() -> None:
    """Give a node that is added here longer than Ray's half minute until its head knows it: on a busy machine that was
    too short. Ray makes a client for each question, so it is asked as seldom as Ray itself does. And let a raylet look
    for its own store as long as those that are started elsewhere do: it ends itself otherwise, and nobody knows it."""
    os.environ.update(RAYLET_ENVIRONMENT)
    get_node = services.get_node

    def got_node(*node: str) -> Any:
        deadline = time.monotonic() + WITHIN_S
        while time.monotonic() < deadline:
            with suppress(RuntimeError):
                return get_node(*node)
            time.sleep(1)
        return get_node(*node)

    services.get_node = got_node


class Raylets:
    """A head without CPUs, and nodes with two workers each."""

    def __init__(self, count: int) -> None:
        be_patient()
        head = {"num_cpus": 0, "include_dashboard": False, "dashboard_port": free_port()}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = [self.cluster.add_node(num_cpus=CPUS) for _ in range(count)]
        trainers.attach(self.cluster.address)

    def remove_one(self, watched: Watched, of: str = "workers", but: str = "") -> None:
        """Kill a raylet with all its workers, on which some or a shard was, but not that on which Ray has put the
        coordinator, nor one on which others were."""
        (actors,) = watched.of("actors")
        holder = state.actor_table(actor_id=actors["coordinator"]["actor_id"])["Address"]["NodeID"]
        kept = {holder, *(actor["node_id"] for actor in actors.get(but, ()))}
        used = {actor["node_id"] for actor in actors[of]} - kept
        node = next(node for node in self.nodes if node.node_id in used)
        self.nodes.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        """End all of them."""
        trainers.detach()
        self.cluster.shutdown()


def composed(folder: Path) -> dict[str, Any]:
    """`sync` on two nodes with two workers each; then the same on one node, by shared memory alone."""
    raylets = Raylets(2)
    try:
        fields: dict[str, Any] = {"workers": {"count": 4, "virtual": 5, "min": 1}, "epochs": 30}
        watched = start("raylets", spec(folder / "plan", **fields), folder / "run")
        has_trained(watched, 700)
        crossed = rate(watched, "crossed_bytes")
        strike(folder / "plan", "kill")
        fault(watched)
        resized(watched, 4)
        has_trained(watched)
        raylets.remove_one(watched)
        resized(watched, 2)
        hurry(folder / "plan")
        watched.end()
        alone = {"workers": {"count": 2, "virtual": 5}, "transport": "shared_memory", "epochs": 30}
        other = start("one-node", spec(folder / "none", pause_s=0, **alone), folder / "one")
        other.end()
        return outcome(watched) | {
            "crossed_bytes_a_step": crossed,
            "nodes": Counter(worker["node_id"] for worker in watched.of("actors")[0]["workers"]),
            "equal": same_bits(folder / "run", folder / "one"),
        }
    finally:
        raylets.close()


def stopped(folder: Path) -> dict[str, Any]:
    """`sync` on two nodes with two workers each and a coordinator on a third, or on one of them: a worker is stopped,
    and then the coordinator. Then the same on one node."""
    raylets = Raylets(2)
    try:
        fields: dict[str, Any] = {"workers": {"count": 4, "virtual": 5}, "epochs": 30}
        watched = start("stopped", spec(folder / "plan", **fields), folder / "run")
        has_trained(watched)
        strike(folder / "plan", "stop")
        fault(watched)
        resized(watched, 4)
        has_trained(watched)
        os.kill(coordinator(watched), signal.SIGSTOP)
        watched.until(lambda e: e.data.get("reason") == "CoordinatorDied")
        hurry(folder / "plan")
        watched.end()
        alone = {"workers": {"count": 1, "virtual": 5}, "transport": "shared_memory", "epochs": 30}
        start("one-node", spec(folder / "none", pause_s=0, **alone), folder / "one").end()
        return outcome(watched) | {"equal": same_bits(folder / "run", folder / "one")}
    finally:
        raylets.close()


def object_store(folder: Path) -> dict[str, Any]:
    """`downpour` on two nodes with two workers each and the shards on a third, through Ray's object store."""
    raylets = Raylets(2)
    try:
        fields: dict[str, Any] = {"workers": {"count": 4, "virtual": 4, "min": 1}, "epochs": 40}
        fields |= {"algorithm": "downpour", "transport": "object_store", "ps": {"shards": 2, "location": "own"}}
        watched = start("objects", spec(folder / "plan", **fields), folder / "run")
        has_trained(watched)
        strike(folder / "plan", "kill")
        fault(watched)
        resized(watched, 4)
        (actors,) = watched.of("actors")
        os.kill(actors["shards"][1]["pid"], signal.SIGKILL)
        fault(watched)
        has_trained(watched)
        raylets.remove_one(watched)
        resized(watched, 2)
        hurry(folder / "plan")
        watched.end()
        places = {kind: [one["node_id"] for one in actors[kind]] for kind in ("workers", "shards")}
        return outcome(watched) | places | {"pushed_bytes": sum(step["pushed_bytes"] for step in watched.of("step"))}
    finally:
        raylets.close()


def region(folder: Path) -> dict[str, Any]:
    """Local steps of the workers of each of two nodes together, with a shard on one of these; the other is removed."""
    raylets = Raylets(2)
    try:
        algorithm = {"name": "mixed", "push": "delta", "steps": 4, "outer": "average", "apart_s": 600}
        fields: dict[str, Any] = {"workers": {"count": 4, "virtual": 4, "min": 1}, "epochs": 30, "algorithm": algorithm}
        watched = start("region", spec(folder / "plan", ps={"shards": 1, "replicas": 1}, **fields), folder / "run")
        has_trained(watched)
        raylets.remove_one(watched, but="shards")
        resized(watched, 2)
        hurry(folder / "plan")
        watched.end()
        warnings = [line["message"] for line in watched.of("log") if "was not sent" in line["message"]]
        unsent = watched.of("result")[0]["unsent_examples"]
        return outcome(watched) | {"unsent_examples": unsent, "warnings": warnings}
    finally:
        raylets.close()


def downpour_shard(folder: Path) -> dict[str, Any]:
    """`downpour` through process groups, with a worker on each of three nodes and a shard on two of these; the node of
    one of them is removed."""
    raylets = Raylets(3)
    try:
        return outcome_of_shards(loses_a_shard(raylets, "downpour", "downpour", folder))
    finally:
        raylets.close()


def sync_shard(folder: Path) -> dict[str, Any]:
    """The same with `sync` through the shards, and then on one node by shared memory alone. What is compared are the
    parameters: nobody has the batch-norm statistics of the worker that is lost."""
    raylets = Raylets(3)
    try:
        found = outcome_of_shards(loses_a_shard(raylets, "sync", SYNC, folder))
        alone = {"workers": {"count": 1, "virtual": 5}, "transport": "shared_memory", "epochs": 30}
        start("one-node", spec(folder / "none", pause_s=0, **alone), folder / "one").end()
        return found | {"equal": same_bits(folder / "sync", folder / "one", but=STATISTICS)}
    finally:
        raylets.close()


def headless_sync(folder: Path) -> dict[str, Any]:
    """`sync` through shards on two of three nodes: the coordinator is killed, then the node of a shard is removed, in
    whose place its copy serves, then the coordinator is killed again. Then the same on one node."""
    found = headless(SYNC, folder)
    return found | {"equal": same_bits(folder / "run", folder / "one", but=STATISTICS)}


def headless_downpour(folder: Path) -> dict[str, Any]:
    """The same with `downpour`."""
    return headless("downpour", folder)


def headless(algorithm: Any, folder: Path) -> dict[str, Any]:
    """What happened to both runs, the second of which is `sync` on one node."""
    raylets = Raylets(3)
    try:
        fields: dict[str, Any] = {"ps": {"shards": 2}, "epochs": 60, "algorithm": algorithm}
        fields |= {"workers": {"count": 3, "virtual": 5, "min": 1, "cpus": CPUS}}
        watched = start("headless", spec(folder / "plan", pause_s=0.05, **fields), folder / "run")
        has_copies(watched, 2)
        dies(watched)
        has_copies(watched, 4)
        has_trained(watched)
        raylets.remove_one(watched, "shards")
        watched.until(lambda e: "goes on at version" in e.data.get("message", ""))
        has_copies(watched, 5)
        dies(watched)
        hurry(folder / "plan")
        watched.end()
        alone = {"workers": {"count": 1, "virtual": 5}, "transport": "shared_memory", "epochs": 60}
        start("one-node", spec(folder / "none", pause_s=0, **alone), folder / "one").end()
        return outcome_of_shards(watched) | {"starts": len(watched.of("actors"))}
    finally:
        raylets.close()


def uncopied(folder: Path) -> dict[str, Any]:
    """`sync` through shards without second copies on two of three nodes, of which one is removed. Then on one node."""
    raylets = Raylets(3)
    try:
        fields: dict[str, Any] = {"ps": {"shards": 2, "replicas": 1}, "epochs": 30, "algorithm": SYNC}
        fields |= {"workers": {"count": 3, "virtual": 5, "min": 1, "cpus": CPUS}, "checkpoint": {"every_epochs": 2}}
        watched = start("uncopied", spec(folder / "plan", pause_s=0.02, **fields), folder / "run")
        watched.until(lambda e: e.type == "checkpoint")
        has_trained(watched)
        raylets.remove_one(watched, "shards")
        watched.until(lambda e: e.data.get("reason") == "ShardLost")
        before = max(step["examples"] for step in watched.of("step"))
        again = watched.until(lambda e: e.type == "step").data
        hurry(folder / "plan")
        watched.end()
        alone = {"workers": {"count": 1, "virtual": 5}, "transport": "shared_memory", "epochs": 30}
        start("one-node", spec(folder / "none", pause_s=0, **alone), folder / "one").end()
        kept = watched.of("checkpoint")[0]["examples"]
        return outcome(watched) | {
            "goes_on": kept < again["examples"] <= before,
            "workers": [len(actors["workers"]) for actors in watched.of("actors")],
            "equal": same_bits(folder / "run", folder / "one", but=STATISTICS),
        }
    finally:
        raylets.close()


def dies(watched: Watched) -> None:
    """The coordinator does, and the run goes on."""
    has_trained(watched)
    os.kill(coordinator(watched), signal.SIGKILL)
    watched.until(lambda e: e.data.get("reason") == "CoordinatorDied")
    has_trained(watched)


def has_copies(watched: Watched, times: int) -> None:
    """So many times since the beginning a shard has got a second copy."""
    while sum("has a second copy" in log["message"] for log in watched.of("log")) < times:
        watched.until(lambda e: e.type == "log")


def loses_a_shard(raylets: Raylets, name: str, algorithm: Any, folder: Path) -> Watched:
    """A run of 30 epochs, at its end; each shard has its copy when the node goes."""
    workers = {"count": 3, "virtual": 5, "min": 1, "cpus": CPUS}
    fields: dict[str, Any] = {"workers": workers, "ps": {"shards": 2}, "epochs": 30, "algorithm": algorithm}
    watched = start(name, spec(folder / "plan", pause_s=0.02, **fields), folder / name)
    has_copies(watched, 2)
    has_trained(watched)
    raylets.remove_one(watched, "shards")
    watched.until(lambda e: "goes on at version" in e.data.get("message", ""))
    has_trained(watched)
    hurry(folder / "plan")
    watched.end()
    return watched


def outcome_of_shards(watched: Watched) -> dict[str, Any]:
    """As `outcome`, with the lost updates and the resizes."""
    lost = watched.of("result")[0]["lost_updates"]
    return outcome(watched) | {"lost_updates": lost, "resizes": watched.of("resize")}


def outcome(watched: Watched) -> dict[str, Any]:
    """How a run ended, and what its audits say."""
    last = {audit["epoch"]: audit for audit in watched.of("epoch_audit")}
    audits = [(audit["trained"], audit["lost"], audit["duplicated"]) for audit in last.values()]
    return {
        "end": watched.events[-1].data,
        "faults": [one["why"] for one in watched.of("fault")],
        "audited": len(audits) > 0 and set(audits) == {(EXAMPLES, 0, 0)},
        "epochs": len(audits),
    }


def rate(watched: Watched, name: str) -> float:
    """Of a figure of the step events, how much a step adds, after the first."""
    first, *steps = watched.of("step")
    return float(sum(step[name] for step in steps) / (steps[-1]["step"] - first["step"]))


def same_bits(one: Path, other: Path, but: tuple[str, ...] = ()) -> bool:
    """Whether two runs have the same bits in all tensors but those in whose names stands one of `but`."""
    found, wanted = load_weights(one / "model.safetensors"), load_weights(other / "model.safetensors")
    names = [name for name in wanted if not any(part in name for part in but)]
    return found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in names)


SCENARIOS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "composed": composed,
    "stopped": stopped,
    "object_store": object_store,
    "region": region,
    "downpour_shard": downpour_shard,
    "sync_shard": sync_shard,
    "uncopied": uncopied,
    "headless_sync": headless_sync,
    "headless_downpour": headless_downpour,
}


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    print(json.dumps(SCENARIOS[sys.argv[1]](Path(sys.argv[2]))))
