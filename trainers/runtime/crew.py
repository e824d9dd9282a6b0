"""Starts and ends the actors of one run: names, placement groups, and what is left on the nodes."""

import asyncio
import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from trainers.runtime.cluster import NAMESPACE
from trainers.runtime.evaluator import Evaluator
from trainers.runtime.member import node_folder
from trainers.runtime.shard import GROUPS as SHARD_GROUPS
from trainers.runtime.shard import ShardActor
from trainers.runtime.worker import GROUPS as WORKER_GROUPS
from trainers.runtime.worker import Worker
from trainers.spec import TrainSpec

CONTROL = "control"
RENEW_S = 2.0


@dataclass
class Crew:
    """The actors of a run. Detached, so that a dead coordinator does not take them along."""

    job_id: str
    spec: TrainSpec
    runtime_env: dict[str, Any] | None
    groups: list[PlacementGroup] = field(default_factory=list)
    workers: list[Any] = field(default_factory=list)
    shards: list[Any] = field(default_factory=list)
    evaluator: Any = None
    node_id: str | None = None

    async def hire(self, coordinator: Any) -> None:
        """Start workers, each in a placement group of its own, and shards beside the first of them."""
        spec = self.spec
        bundle = {"CPU": spec.workers.cpus, "GPU": spec.workers.gpus}
        bundle = {name: amount for name, amount in bundle.items() if amount}
        for rank in range(spec.workers.count):
            if bundle:
                name = f"{self.job_id}/worker/{rank}"
                self.groups.append(placement_group([bundle], name=name, lifetime="detached"))
        for group in self.groups:
            await group.ready()
        if self.groups:
            self.node_id = next(iter(placement_group_table(self.groups[0])["bundles_to_node_id"].values()))
        for rank in range(spec.workers.count):
            place = {"scheduling_strategy": PlacementGroupSchedulingStrategy(self.groups[rank], 0)} if bundle else {}
            options = place | {"num_cpus": spec.workers.cpus, "num_gpus": spec.workers.gpus}
            name = f"{self.job_id}/worker/{rank}"
            arguments = (name, self.job_id, spec, coordinator)
            self.workers.append(self._start(Worker, name, options, WORKER_GROUPS, arguments))
        if spec.algorithm.uses_parameter_server:
            for index in range(spec.ps.shards):
                name = f"{self.job_id}/shard/{index}"
                options = self._beside_workers() | {"num_cpus": spec.ps.cpus}
                arguments = (name, self.job_id, spec, index)
                self.shards.append(self._start(ShardActor, name, options, SHARD_GROUPS, arguments))

    def hire_evaluator(self) -> Any:
        """Start the evaluator, when it is first needed."""
        if self.evaluator is None:
            name = f"{self.job_id}/evaluator"
            options = self._beside_workers() | {"num_cpus": 0}
            groups = {CONTROL: 2}
            self.evaluator = self._start(Evaluator, name, options, groups, (name, self.job_id, self.spec))
        return self.evaluator

    @property
    def members(self) -> list[Any]:
        """All actors but the coordinator."""
        return [*self.workers, *self.shards, *([self.evaluator] if self.evaluator else [])]

    async def renew(self) -> None:
        """Tell everyone, again and again, that the coordinator lives."""
        while True:
            for member in self.members:
                member.renew.options(concurrency_group=CONTROL).remote()
            await asyncio.sleep(RENEW_S)

    async def dismiss(self) -> None:
        """End all actors and placement groups, and remove what they left on their nodes."""
        sweeps = [worker.sweep.options(concurrency_group=CONTROL).remote() for worker in self.workers]
        if sweeps:
            with suppress(Exception):  # a dead worker cannot sweep; whoever lives on its node does
                await asyncio.wait_for(asyncio.gather(*sweeps, return_exceptions=True), timeout=5)
        for member in self.members:
            ray.kill(member)
        for group in self.groups:
            remove_placement_group(group)
        shutil.rmtree(node_folder(self.job_id), ignore_errors=True)

    def _beside_workers(self) -> dict[str, Any]:
        if self.node_id is None:
            return {}
        return {"scheduling_strategy": NodeAffinitySchedulingStrategy(self.node_id, soft=True)}

    def _start(
        self, kind: type, name: str, options: dict[str, Any], groups: dict[str, int], arguments: tuple[Any, ...]
    ) -> Any:
        actor = ray.remote(concurrency_groups=groups)(kind).options(
            name=name,
            namespace=NAMESPACE,
            lifetime="detached",
            max_restarts=0,
            max_task_retries=0,
            runtime_env=self.runtime_env,
            **options,
        )
        return actor.remote(*arguments)


def gone(job_id: str) -> None:
    """Kill and remove whatever a run left behind on this cluster and this node."""
    for entry in ray.util.list_named_actors(all_namespaces=True):
        if entry["namespace"] == NAMESPACE and entry["name"].startswith(f"{job_id}/"):
            with suppress(ValueError):
                ray.kill(ray.get_actor(entry["name"], NAMESPACE))
    for group in placement_group_table().values():
        if group["name"].startswith(f"{job_id}/") and group["state"] != "REMOVED":
            with suppress(ValueError):
                remove_placement_group(ray.util.get_placement_group(group["name"]))
    shutil.rmtree(node_folder(job_id), ignore_errors=True)
