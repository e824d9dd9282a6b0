"""Actors of a run as their coordinator has them: started, called, and ended by name."""

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group

from trainers.runtime.cluster import NAMESPACE
from trainers.runtime.messages import Prepared
from trainers.runtime.node_folder import cleanup
from trainers.runtime.nodes import ask_on, end_process, process_of

CONTROL = "control"
"""The concurrency group of the methods that answer while an actor's long call (`train`, `serve`) runs."""
COORDINATOR = "coordinator"
"""The last part of the name of a run's coordinator."""
GONE_S = 10.0
"""How long `kill_run` waits for the names of killed actors to become free."""


@dataclass(eq=False)
class WorkerHandle:
    """A worker of a run."""

    number: int
    """No two workers of a run have the same one, not even one after the other."""
    name: str
    actor: Any
    reservation: PlacementGroup | None = None
    """What it takes of the cluster; none where it reserves nothing, or somebody else has reserved it."""
    prepared: Prepared | None = None
    """What it answered when it was ready to train."""
    is_leaving: bool = False
    """Whether it was told to leave the training."""
    fault: str = ""
    """Why it was ended, if it hung."""

    @property
    def node(self) -> str | None:
        """Where it is. A worker that reserves nothing has no known node before it is ready."""
        if self.prepared is not None:
            return self.prepared.place.node_id
        return _node_of(self.reservation) if self.reservation is not None else None

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call one of its control methods."""
        return getattr(self.actor, method).options(concurrency_group=CONTROL).remote(*arguments)

    async def prepare(self, *, chooses: bool, tries: bool) -> Prepared:
        """Have it load the data and build the model; as `Worker.prepare`."""
        prepared: Prepared = await self.ask("prepare", chooses, tries)
        self.prepared = prepared
        return prepared


@dataclass(frozen=True)
class WarmPool:
    """Actors that stay from one run to the next. They die with the process that started them."""

    workers: list[Any]
    evaluator: Any


def start_actor(
    kind: type,
    name: str,
    options: dict[str, Any],
    groups: dict[str, int],
    arguments: tuple[Any, ...],
    **named: Any,
) -> Any:
    """Start an actor that Ray never restarts, and none of whose calls it repeats."""
    actor = ray.remote(concurrency_groups=groups)(kind).options(
        name=name, namespace=NAMESPACE, max_restarts=0, max_task_retries=0, **options
    )
    return actor.remote(*arguments, **named)


def kill_run(job_id: str, but: str | None = None) -> None:
    """Kill and remove whatever a run left behind on this cluster and this node, except its actor named `but`. Blocks
    until the actors' names are free again."""
    if but != COORDINATOR:
        _kill_coordinator(job_id)
    for name in _names(job_id, but):
        with suppress(ValueError):
            ray.kill(ray.get_actor(name, NAMESPACE))
    for group in placement_group_table().values():
        if group["name"].startswith(f"{job_id}/") and group["state"] != "REMOVED":
            with suppress(ValueError):
                remove_placement_group(ray.util.get_placement_group(group["name"]))
    deadline = time.monotonic() + GONE_S
    while _names(job_id, but) and time.monotonic() < deadline:
        time.sleep(0.05)
    cleanup(job_id)


def _kill_coordinator(job_id: str) -> None:
    """First of all, and until its process is gone: it would reserve room for others in place of workers that die, and
    Ray ends a process a moment after it says that its actor is dead."""
    with suppress(ValueError):
        coordinator = ray.get_actor(f"{job_id}/{COORDINATOR}", NAMESPACE)
        where = process_of(coordinator)
        ray.kill(coordinator)
        if where is not None:
            node, pid = where
            ask_on(node, end_process, pid)


def _names(job_id: str, but: str | None) -> list[str]:
    """Names of the run's actors that Ray still knows."""
    found = ray.util.list_named_actors(all_namespaces=True)
    ours = [entry["name"] for entry in found if entry["namespace"] == NAMESPACE]
    return [name for name in ours if name.startswith(f"{job_id}/") and name != f"{job_id}/{but}"]


def _node_of(group: PlacementGroup) -> str | None:
    """The node on which the bundle of a placement group lies, once the group is ready, and not while it moves."""
    nodes = placement_group_table(group)["bundles_to_node_id"].values()
    return str(next(iter(nodes))) if any(nodes) else None
