"""The nodes of the connected cluster: which are alive, which are being drained, and how to act on one of them."""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trainers.elastic.placement import NodeCapacity
from trainers.runtime.processes import start_ticks, wait_for_all

T = TypeVar("T")
STATUS_TIMEOUT_S = 30.0
"""How long Ray may take to tell its autoscaler's state; it is asked again later."""


def nodes_alive() -> dict[str, NodeCapacity]:
    """What each node of the cluster has."""
    alive = [(node["NodeID"], node["Resources"]) for node in ray.nodes() if node["Alive"]]
    return {node_id: NodeCapacity(has.get("CPU", 0.0), has.get("GPU", 0.0)) for node_id, has in alive}


def draining_nodes() -> set[str]:
    """The nodes that are about to be taken away."""
    from ray._private.state import state  # Ray has no public call for it

    return set(state.get_draining_nodes())


def refused_groups() -> frozenset[str]:
    """The ids of the placement groups for which Ray's autoscaler has no node to add; only its second version says so,
    and while Ray's head is away nobody does. Blocks."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # Ray has no public call for it
    from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply

    try:
        known = GcsClient(ray.get_runtime_context().gcs_address).get_cluster_status(timeout_s=STATUS_TIMEOUT_S)
    except ray.exceptions.RpcError:
        return frozenset()
    refused = GetClusterStatusReply.FromString(known).autoscaling_state.infeasible_gang_resource_requests
    return frozenset(one.details.partition(":")[0] for one in refused)


def on_node(node: str) -> dict[str, Any]:
    """The options that put an actor on one node. Hard affinity: on several nodes Ray often ignores the soft one."""
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}


def do_on(node: str, function: Callable[..., None], *arguments: Any) -> None:
    """Run a function on a node, if the node is alive. Does not wait for it."""
    if node == ray.get_runtime_context().get_node_id():
        function(*arguments)
    elif node in nodes_alive():
        ray.remote(num_cpus=0, max_retries=0)(function).options(**on_node(node)).remote(*arguments)


def ask_on(node: str, function: Callable[..., T], *arguments: Any) -> T | None:
    """What a function says on a node; None if the node is not alive. Blocks: a second or so for another node."""
    if node == ray.get_runtime_context().get_node_id():
        return function(*arguments)
    if node not in nodes_alive():
        return None
    task = ray.remote(num_cpus=0, max_retries=0)(function).options(**on_node(node))
    try:
        answer: T = ray.get(task.remote(*arguments))
    except ray.exceptions.RayTaskError:
        raise
    except ray.exceptions.RayError:  # the node has died since
        return None
    return answer


def process_of(actor: Any) -> tuple[str, int] | None:
    """Node and number of the process in which an actor lives, as Ray knows them; None while it is started, or dead."""
    from ray._private.state import state  # Ray's public call for it needs the dashboard

    known = state.actor_table(actor._actor_id.hex())
    return (known["Address"]["NodeID"], known["Pid"]) if known.get("State") == "ALIVE" else None


async def died_with(node: str | None) -> bool:
    """Whether what has died on a node died because the node did. Ray notices that late, up to a minute, and until then
    puts others there, who die as well: so the node itself is asked, and Ray knows when this returns."""
    return node is not None and await asyncio.to_thread(ask_on, node, _is_here) is None


def _is_here() -> bool:
    return True


def kill_process(pid: int) -> None:
    """Kill a worker process of Ray's by signal. Does nothing if the process id now belongs to something else."""
    with suppress(OSError):
        if b"ray::" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)


def end_process(pid: int) -> None:
    """Kill a worker process of Ray's on this node, and wait until it is gone."""
    started = start_ticks(pid)
    kill_process(pid)
    if started is not None:
        wait_for_all([(pid, started)])
