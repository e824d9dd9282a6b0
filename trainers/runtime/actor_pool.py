"""Starts and ends the actors of one run, and keeps their placement groups."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from trainers.elastic.placement import NodeCapacity, awaited_room, own, with_workers
from trainers.runtime.actor_handles import CONTROL, WarmPool, WorkerHandle, start_actor
from trainers.runtime.actors.callbacks import CallbackActor
from trainers.runtime.actors.dataset import DatasetActor
from trainers.runtime.actors.evaluator import Evaluator
from trainers.runtime.actors.shard import GROUPS as SHARD_GROUPS
from trainers.runtime.actors.shard import OBJECT_STORE_GROUPS, ShardActor
from trainers.runtime.actors.standby import StandbyActor
from trainers.runtime.actors.worker import GROUPS as WORKER_GROUPS
from trainers.runtime.actors.worker import Worker
from trainers.runtime.messages import ActorLocation
from trainers.runtime.node_folder import cleanup
from trainers.runtime.nodes import do_on, draining_nodes, kill_process, nodes_alive, on_node, refused_groups
from trainers.runtime.ray_data.blocks import dataset_name
from trainers.runtime.topology import SPARE_WORKERS
from trainers.spec import TrainSpec

NODE = "ray.io/node-id"
"""The label that Ray gives every node."""
PATIENCE_S = 5.0
"""How long a run that may have fewer workers waits for the room for all."""


@dataclass
class ActorPool:
    """The actors of a run. They are detached, so that they survive their coordinator; those of a trial are not."""

    job_id: str
    spec: TrainSpec
    runtime_env: dict[str, Any] | None
    coordinator: Any
    """The handle that workers and shards call back."""
    warm_pool: WarmPool | None = None
    """Workers and an evaluator that exist already and stay when the run ends. The pool starts none of its own then."""
    workers: list[WorkerHandle] = field(default_factory=list)
    num_started: int = 0
    """Workers so far."""
    num_reserved: int = 0
    """Placement groups for workers so far."""
    reserving: dict[asyncio.Task[None], PlacementGroup] = field(default_factory=dict)
    """Those that are waited for; what stands for each is done once it has found room."""
    shards: list[Any] = field(default_factory=list)
    """By index: the actor that serves each one, or is about to."""
    shard_nodes: list[str] = field(default_factory=list)
    """By index: where each is, known once they are ready."""
    shard_options: list[dict[str, Any]] = field(default_factory=list)
    """By index: with which Ray's options its first process was started."""
    shard_ages: list[int] = field(default_factory=list)
    """By index: how many workers had been started when the shard's process was started."""
    shard_groups: list[PlacementGroup] = field(default_factory=list)
    standbys: list[Any] = field(default_factory=list)
    """Second copies of shards on other nodes."""
    num_replaced: int = 0
    """Shards and evaluators so far that may have replaced a dead one, whose name stays taken for a while."""
    dataset: Any = None
    """The actor that holds the Ray Dataset, where one is trained."""
    evaluator: Any = None
    evaluator_node: str | None = None
    """Where it was put, if anywhere."""
    shard_only_nodes: list[str] = field(default_factory=list)
    faults: dict[Any, str] = field(default_factory=dict)
    """By the handle of an actor that is no worker: why it was ended, if it hung."""

    @property
    def is_trial(self) -> bool:
        """Whether this is a trial of a sweep, which keeps the processes that it was given and replaces none."""
        return self.warm_pool is not None

    # -- starting -------------------------------------------------------------------------------------------------

    async def start_all(self, least: int) -> None:
        """Start workers, at least so many, and shards, each in a placement group of its own if it reserves anything.

        Raises:
            SpecRejected: There is no node for the shards.
        """
        self.shard_only_nodes = self._choose_shard_only_nodes(least)
        if self.warm_pool is None:
            self.start_workers(await self.reserve(self.spec.workers.count, least))
        else:
            await self._use(self.warm_pool)
        await self._start_shards()

    async def _use(self, warm: WarmPool) -> None:
        """Tell the warm actors which run is next."""
        spec, job_id = self.spec, self.job_id
        self.workers = [WorkerHandle(i, f"{job_id}/worker/{i}", actor) for i, actor in enumerate(warm.workers)]
        self.num_started, self.evaluator = len(self.workers), warm.evaluator
        calls = [worker.ask("take_up", job_id, spec, self.coordinator) for worker in self.workers]
        await asyncio.gather(*calls, self.evaluator.take_up.remote(job_id, spec))

    def take_back(self, workers: list[WorkerHandle], shards: list[Any], dataset: Any, num_replaced: int) -> None:
        """Adopt actors that survived the coordinator before this one, and give back what others had reserved."""
        self.workers, self.shards, self.dataset, self.num_replaced = workers, shards, dataset, num_replaced
        self.shard_ages = [0] * len(shards)
        self.num_started = self.num_reserved = max(w.number for w in workers) + 1 + self.spec.workers.count
        kept = {worker.reservation.id.hex() for worker in workers if worker.reservation is not None}
        for key, group in placement_group_table().items():
            ours = group["name"].startswith(f"{self.job_id}/worker/") and group["state"] != "REMOVED"
            if ours and key not in kept:
                remove_placement_group(ray.util.get_placement_group(group["name"]))

    def resume_from(self, checkpoint: str | None) -> None:
        """Have the actors that are started from now on begin from a checkpoint; None leaves what the spec says."""
        resume = self.spec.checkpoint.model_copy(update={"resume": checkpoint or self.spec.checkpoint.resume})
        self.spec = self.spec.model_copy(update={"checkpoint": resume})

    async def reserve(self, count: int, least: int) -> list[PlacementGroup | None]:
        """Reserve room for so many workers, anywhere but on the shards' own nodes. Waits until there is room for all;
        after a while, only until there is room for `least`."""
        bundle = {"CPU": self.spec.workers.cpus, "GPU": self.spec.workers.gpus}
        bundle = {name: amount for name, amount in bundle.items() if amount}
        if not bundle:
            return [None] * count
        first, self.num_reserved = self.num_reserved, self.num_reserved + count
        names = [f"{self.job_id}/worker/{first + i}" for i in range(count)]
        groups = [_reserve(name, bundle, self._off_shard_nodes) for name in names]
        pending = {asyncio.ensure_future(_ready(group)): group for group in groups}
        self.reserving |= pending
        found: list[PlacementGroup | None] = []
        try:
            if least < count:
                await asyncio.wait(pending, timeout=PATIENCE_S)
            while sum(one.done() for one in pending) < least:
                await asyncio.wait([one for one in pending if not one.done()], return_when=asyncio.FIRST_COMPLETED)
            for one in [one for one in pending if one.done()]:
                await one  # raises if the group could not be made
                found.append(pending[one])
        except BaseException:
            found = []
            raise
        finally:
            for one, group in pending.items():
                del self.reserving[one]
                if group not in found:
                    one.cancel()
                    remove_placement_group(group)
        return found

    async def what_room_is_awaited(self) -> str | None:
        """What the workers wait for that have no room yet, in a sentence; None if there are none."""
        reserving = self.reserving.copy()
        missing = {group.id.hex() for one, group in reserving.items() if not one.done()}
        if not missing:
            return None
        is_refused = not missing.isdisjoint(await asyncio.to_thread(refused_groups))
        worker, _ = self._capacities()
        return awaited_room(nodes_alive().values(), worker, len(reserving), len(missing), is_refused)

    def start_workers(self, reserved: list[PlacementGroup | None]) -> list[WorkerHandle]:
        """Start one worker in each of the placement groups."""
        spec, started = self.spec, list[WorkerHandle]()
        for group in reserved:
            where: dict[str, Any] = {"label_selector": self._off_shard_nodes} if self._off_shard_nodes else {}
            if group is not None:
                where = {"scheduling_strategy": PlacementGroupSchedulingStrategy(group, 0)}
            options = where | {"num_cpus": spec.workers.cpus, "num_gpus": spec.workers.gpus}
            name = f"{self.job_id}/worker/{self.num_started}"
            actor = self._start(Worker, name, options, WORKER_GROUPS, (name, self.job_id, spec, self.coordinator))
            started.append(WorkerHandle(self.num_started, name, actor, group))
            self.num_started += 1
        self.workers += started
        return started

    def restart_worker(self, rank: int) -> None:
        """Start another worker in place of one that died before it was ready, where that was."""
        dead = self.workers[rank]
        self.end(dead)
        self.start_workers([dead.reservation])
        self.workers[rank] = self.workers.pop()

    async def _start_shards(self) -> None:
        """Start the shards on nodes of their own, or beside the workers if there are none."""
        ps = self.spec.ps
        if not self.spec.algorithm.traits.uses_parameter_server:
            return
        nodes = self.shard_only_nodes
        workers = self._nodes_of_workers
        if not nodes and workers:
            nodes = with_workers(nodes_alive(), workers, *self._capacities())
        for index in range(ps.shards):
            name = f"{self.job_id}/shard/{index}"
            where = on_node(nodes[index]) if nodes else {}
            if nodes and ps.cpus:
                self.shard_groups.append(_reserve(name, {"CPU": ps.cpus}, {NODE: nodes[index]}))
                await self.shard_groups[-1].ready()
                where = {"scheduling_strategy": PlacementGroupSchedulingStrategy(self.shard_groups[-1], 0)}
            arguments = (name, self.job_id, self.spec, index)
            self.shard_options.append(where | {"num_cpus": ps.cpus})
            actor = self._start(ShardActor, name, self.shard_options[index], self._shard_concurrency, arguments)
            self.shards.append(actor)
            self.shard_ages.append(self.num_started)

    def locate_shards(self, places: list[ActorLocation]) -> None:
        """Take note of where the shards are."""
        self.shard_nodes = [place.node_id for place in places]

    def restart_shard(self, index: int) -> Any:
        """Start another process in place of a shard's that died before it served, where that was."""
        return self._replace_shard(index, self.shard_options[index])

    def replace_shard(self, index: int) -> Any:
        """Start another process in place of a shard's that died, on the same node."""
        return self._replace_shard(index, on_node(self.shard_nodes[index]) | {"num_cpus": 0})

    def _replace_shard(self, index: int, options: dict[str, Any]) -> Any:
        self.num_replaced += 1
        name = f"{self.job_id}/shard/{index}-{self.num_replaced}"
        arguments = (name, self.job_id, self.spec, index)
        self.shards[index] = self._start(ShardActor, name, options, self._shard_concurrency, arguments)
        self.shard_ages[index] = self.num_started
        return self.shards[index]

    def start_standby(self, index: int, number: int, node: str) -> tuple[Any, str]:
        """Start the second copy of a shard on another node; returns the actor and its name."""
        name = f"{self.job_id}/standby/{index}-{number}"
        arguments = (name, self.job_id, self.spec, index)
        actor = self._start(StandbyActor, name, on_node(node) | {"num_cpus": 0}, SHARD_GROUPS, arguments)
        self.standbys.append(actor)
        return actor, name

    def promote(self, index: int, standby: Any, node: str) -> None:
        """From now on, what was the second copy of a shard is the shard."""
        self.standbys.remove(standby)
        self.shards[index], self.shard_nodes[index] = standby, node
        self.shard_ages[index] = self.num_started

    def start_dataset(self) -> Any:
        """Start the actor that executes the Ray Dataset and holds its blocks."""
        name = dataset_name(self.job_id)
        self.dataset = self._start(DatasetActor, name, {"num_cpus": 0}, {CONTROL: 2}, (name, self.job_id, self.spec))
        return self.dataset

    def start_evaluator(self) -> Any:
        """The evaluator; it is started when it is first needed, beside a worker if one has a node that is alive."""
        if self.evaluator is None:
            name = f"{self.job_id}/evaluator" + (f"-{self.num_replaced}" if self.num_replaced else "")
            self.num_replaced += 1
            alive = nodes_alive()
            self.evaluator_node = next((node for node in self._nodes_of_workers if node in alive), None)
            options = (on_node(self.evaluator_node) if self.evaluator_node is not None else {}) | {"num_cpus": 0}
            arguments = (name, self.job_id, self.spec)
            self.evaluator = self._start(Evaluator, name, options, {CONTROL: 2}, arguments)
        return self.evaluator

    def start_callbacks(self, run_dir: Path) -> tuple[Any, str]:
        """Start the actor that calls the callbacks, on this node, which has the run's folder; returns it and its name.
        The pool does not end it: it is done when the rest of the run is over."""
        name = f"{self.job_id}/callbacks" + (f"-{self.num_replaced}" if self.num_replaced else "")
        self.num_replaced += 1
        options = on_node(ray.get_runtime_context().get_node_id()) | {"num_cpus": 0}
        arguments = (name, self.job_id, self.spec, run_dir)
        return self._start(CallbackActor, name, options, {CONTROL: 2}, arguments), name

    def forget_evaluator(self) -> tuple[str | None, str]:
        """It has died; another is started when one is needed. Returns its node, if it was given one, and why."""
        evaluator, self.evaluator = self.evaluator, None
        return self.evaluator_node, self.why_gone(evaluator)

    def why_gone(self, actor: Any, how: str = "died") -> str:
        """Why an actor that is no worker is gone. how: What Ray says of it, unless it was ended for a fault."""
        return self.faults.pop(actor, how)

    def _start(
        self, kind: type, name: str, options: dict[str, Any], groups: dict[str, int], arguments: tuple[Any, ...]
    ) -> Any:
        options = options | {"runtime_env": self.runtime_env}
        if self.is_trial:  # its actors die with its coordinator
            return start_actor(kind, name, options, groups, arguments)
        options = options | {"lifetime": "detached"}
        return start_actor(kind, name, options, groups, arguments, coordinator_name=f"{self.job_id}/coordinator")

    # -- where they may go ----------------------------------------------------------------------------------------

    @property
    def _nodes_of_workers(self) -> list[str]:
        """By rank. Where a group may be cut off only the one with the coordinator, if it has workers: the shards and
        the evaluator belong on its side."""
        nodes = [worker.node for worker in self.workers if worker.node is not None]
        here = ray.get_runtime_context().get_node_id() if self.spec.algorithm.traits.apart_s else ""
        return [node for node in nodes if node == here] or nodes

    @property
    def _off_shard_nodes(self) -> dict[str, str]:
        """The label selector of nodes that are not reserved for shards."""
        nodes = sorted(set(self.shard_only_nodes))
        return {NODE: f"!in({','.join(nodes)})"} if nodes else {}

    def _choose_shard_only_nodes(self, num_workers: int) -> list[str]:
        """By shard: the node that it has to itself, if the spec asks for that and enough is left for the workers."""
        if not self.spec.algorithm.traits.uses_parameter_server or self.spec.ps.location != "own":
            return []
        worker, shards = self._capacities()
        return own(nodes_alive(), (num_workers, worker), shards)

    def _capacities(self) -> tuple[NodeCapacity, tuple[int, NodeCapacity]]:
        """What a worker takes; how many shards there are, and what each takes."""
        ps, workers = self.spec.ps, self.spec.workers
        return NodeCapacity(workers.cpus, workers.gpus), (ps.shards, NodeCapacity(ps.cpus))

    @property
    def _shard_concurrency(self) -> dict[str, int]:
        """The concurrency groups of a shard. Through the object store, each worker may have a call open."""
        if self.spec.transport != "object_store":
            return SHARD_GROUPS
        return SHARD_GROUPS | OBJECT_STORE_GROUPS | {"listen": self.spec.most_workers + 2 * SPARE_WORKERS}

    # -- ending -----------------------------------------------------------------------------------------------

    def draining(self) -> frozenset[str]:
        """The nodes that are about to be taken away."""
        return frozenset(draining_nodes())

    def let_go(self, worker: WorkerHandle) -> None:
        """End a worker, dead or alive, and give back what it had reserved."""
        if worker in self.workers:
            self.workers.remove(worker)
        self.end(worker)
        if worker.reservation is not None:
            remove_placement_group(worker.reservation)

    def end(self, worker: WorkerHandle) -> None:
        """End a worker's process, dead or alive."""
        _kill(worker)
        ray.kill(worker.actor)

    def let_standby_go(self, standby: Any) -> None:
        """End the second copy of a shard."""
        self.standbys.remove(standby)
        ray.kill(standby)

    async def dismiss(self) -> None:
        """End all actors and placement groups, and remove what they left on their nodes."""
        cleanups = [worker.ask("cleanup") for worker in self.workers]
        cleanups += [  # their nodes may have no workers
            actor.cleanup.options(concurrency_group=CONTROL).remote()
            for actor in (self.shards if self.is_trial else self.beside_workers)
        ]
        if cleanups:
            with suppress(Exception):  # what a dead actor cannot remove, those that live on its node do
                await asyncio.wait_for(asyncio.gather(*cleanups, return_exceptions=True), timeout=5)
        everyone = [*(worker.actor for worker in self.workers), *self.beside_workers]
        for actor in self.shards if self.is_trial else everyone:
            ray.kill(actor)
        for group in [*self.shard_groups, *(worker.reservation for worker in self.workers)]:
            if group is not None:
                remove_placement_group(group)
        cleanup(self.job_id)

    @property
    def beside_workers(self) -> list[Any]:
        """The actors that are no workers."""
        return [*self.shards, *self.standbys, *(one for one in (self.dataset, self.evaluator) if one)]


def _kill(worker: WorkerHandle) -> None:
    """Kill a worker by signal: one that hangs or is stopped hears nothing else."""
    if worker.prepared is not None:
        do_on(worker.prepared.place.node_id, kill_process, worker.prepared.place.pid)


def _reserve(name: str, bundle: dict[str, float], labels: dict[str, str]) -> PlacementGroup:
    """A placement group for one actor, on a node with these labels."""
    selector = [labels] if labels else None
    return placement_group([bundle], name=name, lifetime="detached", bundle_label_selector=selector)


async def _ready(group: PlacementGroup) -> None:
    await group.ready()
