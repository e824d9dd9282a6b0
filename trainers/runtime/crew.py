"""Starts and ends the actors of one run: names, placement groups, and what is left on the nodes."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from trainers.elastic.placement import Room, own, with_workers
from trainers.elastic.pulse import BEAT_S, Pulses
from trainers.runtime.cluster import NAMESPACE
from trainers.runtime.evaluator import Evaluator
from trainers.runtime.exchanges import SPARE_SEATS
from trainers.runtime.messages import Prepared
from trainers.runtime.node_folder import sweep
from trainers.runtime.shard import GROUPS as SHARD_GROUPS
from trainers.runtime.shard import OBJECT_STORE_GROUPS, ShardActor
from trainers.runtime.worker import GROUPS as WORKER_GROUPS
from trainers.runtime.worker import Worker
from trainers.spec import TrainSpec

CONTROL = "control"
NODE = "ray.io/node-id"
"""The label that Ray gives every node."""
RENEW_S = 5.0
GONE_S = 10.0
PATIENCE_S = 5.0
"""How long a run that may have fewer workers waits for the room for all."""


@dataclass(eq=False)
class Hired:
    """A worker of a run."""

    number: int
    """Nobody in the run had it before."""
    name: str
    actor: Any
    reservation: PlacementGroup | None = None
    """What it takes of the cluster; none where it reserves nothing, or somebody else has reserved it."""
    prepared: Prepared | None = None
    """What it told when it was ready to train."""
    leaves: bool = False
    """Whether it was told to leave the training."""
    fault: str = ""
    """Why it was ended, where it hung."""
    asked: asyncio.Task[None] | None = None
    """A question that it has not answered yet."""

    @property
    def node(self) -> str | None:
        """Where it is; unknown until it is ready where it reserves nothing."""
        if self.prepared is not None:
            return self.prepared.place.node_id
        return _node_of(self.reservation) if self.reservation is not None else None

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call one of its control methods."""
        return getattr(self.actor, method).options(concurrency_group=CONTROL).remote(*arguments)


@dataclass
class Crew:
    """The actors of a run. Detached, so that a dead coordinator does not take them along."""

    job_id: str
    spec: TrainSpec
    runtime_env: dict[str, Any] | None
    coordinator: Any = None
    groups: list[PlacementGroup] = field(default_factory=list)
    """Of the shards."""
    workers: list[Hired] = field(default_factory=list)
    hired: int = 0
    """Workers so far."""
    reserved: int = 0
    """Places for workers so far."""
    shards: list[Any] = field(default_factory=list)
    shard_nodes: list[str] = field(default_factory=list)
    """Where each is, once they are ready."""
    shard_ages: list[int] = field(default_factory=list)
    """How many workers had been hired when each one's process was started."""
    copies: list[Any] = field(default_factory=list)
    """Second copies of shards on other nodes."""
    replaced: int = 0
    """Shards and evaluators so far that may have taken the place of a dead one: its name is taken for a while."""
    evaluator: Any = None
    pulses: Pulses = field(default_factory=Pulses)
    apart: list[str] = field(default_factory=list)
    """The nodes of shards that have nodes of their own."""
    staff: "Staff | None" = None
    """Workers and an evaluator that are there already and stay when the run ends; it starts none of its own then."""

    async def hire(self, least: int) -> None:
        """Start workers, at least so many, and shards, each in a placement group of its own where it reserves anything.

        Raises:
            SpecRejected: There is no node for the shards.
        """
        self.apart = self._nodes_apart(least)
        if self.staff is None:
            self.start_workers(await self.reserve(self.spec.workers.count, least))
        else:
            await self._take_over(self.staff)
        await self._hire_shards(self.apart)

    async def _take_over(self, staff: "Staff") -> None:
        """Tell the staff which run is next."""
        spec, job_id = self.spec, self.job_id
        self.workers = [Hired(i, f"{job_id}/worker/{i}", actor) for i, actor in enumerate(staff.workers)]
        self.hired, self.evaluator = len(self.workers), staff.evaluator
        told = [worker.ask("take_up", job_id, spec, self.coordinator) for worker in self.workers]
        await asyncio.gather(*told, self.evaluator.take_up.remote(job_id, spec))

    def take_back(self, workers: list[Hired], shards: list[Any], replaced: int) -> None:
        """These live already; what was reserved for others of the run is given back.

        Args:
            replaced: The number for the name of the next who takes another's place.
        """
        self.workers, self.shards, self.replaced = workers, shards, replaced
        self.shard_ages = [0] * len(shards)
        self.hired = self.reserved = max(worker.number for worker in workers) + 1 + self.spec.workers.count
        kept = {worker.reservation.id.hex() for worker in workers if worker.reservation is not None}
        for key, group in placement_group_table().items():
            mine = group["name"].startswith(f"{self.job_id}/worker/") and group["state"] != "REMOVED"
            if mine and key not in kept:
                remove_placement_group(ray.util.get_placement_group(group["name"]))

    async def reserve(self, count: int, least: int) -> list[PlacementGroup | None]:
        """Room for so many workers, anywhere but on the shards' own nodes. Waits until there is; after a while, only
        until there is for `least`."""
        bundle = {"CPU": self.spec.workers.cpus, "GPU": self.spec.workers.gpus}
        bundle = {name: amount for name, amount in bundle.items() if amount}
        if not bundle:
            return [None] * count
        first, self.reserved = self.reserved, self.reserved + count
        names = [f"{self.job_id}/worker/{first + i}" for i in range(count)]
        groups = [self._reserve(name, bundle, self._elsewhere) for name in names]
        waiting = {asyncio.ensure_future(_ready(group)): group for group in groups}
        try:
            if least < count:
                await asyncio.wait(waiting, timeout=PATIENCE_S)
            while sum(one.done() for one in waiting) < least:
                await asyncio.wait([one for one in waiting if not one.done()], return_when=asyncio.FIRST_COMPLETED)
            found: list[PlacementGroup | None] = []
            for one, group in waiting.items():
                if one.done():
                    await one  # raises what became of it
                    found.append(group)
        except BaseException:  # nobody waits for the room any more
            found = []
            raise
        finally:
            for one, group in waiting.items():
                if group not in found:
                    one.cancel()
                    remove_placement_group(group)
        return found

    def start_workers(self, reserved: list[PlacementGroup | None]) -> list[Hired]:
        """One more worker in each place that was reserved."""
        spec, found = self.spec, list[Hired]()
        for group in reserved:
            place: dict[str, Any] = {"label_selector": self._elsewhere} if self._elsewhere else {}
            if group is not None:
                place = {"scheduling_strategy": PlacementGroupSchedulingStrategy(group, 0)}
            options = place | {"num_cpus": spec.workers.cpus, "num_gpus": spec.workers.gpus}
            name = f"{self.job_id}/worker/{self.hired}"
            actor = self.start(Worker, name, options, WORKER_GROUPS, (name, self.job_id, spec, self.coordinator))
            found.append(Hired(self.hired, name, actor, group))
            self.hired += 1
        self.workers += found
        return found

    @property
    def _elsewhere(self) -> dict[str, str]:
        """The label of nodes that are not the shards' own."""
        return {NODE: f"!in({','.join(sorted(set(self.apart)))})"} if self.apart else {}

    def let_go(self, worker: Hired) -> None:
        """End a worker and give back what it took; one that is dead already is only struck off."""
        if worker in self.workers:
            self.workers.remove(worker)
        end_process(worker)
        ray.kill(worker.actor)
        if worker.reservation is not None:
            remove_placement_group(worker.reservation)

    def _nodes_apart(self, num_workers: int) -> list[str]:
        """A node for each shard where they have nodes of their own, which that leaves enough for so many workers."""
        if not self.spec.algorithm.uses_parameter_server or self.spec.ps.location != "own":
            return []
        worker, shards = self._rooms()
        return own(nodes_alive(), (num_workers, worker), shards)

    def _rooms(self) -> tuple[Room, tuple[int, Room]]:
        """What a worker takes; how many shards there are and what each takes."""
        ps, workers = self.spec.ps, self.spec.workers
        return Room(workers.cpus, workers.gpus), (ps.shards, Room(ps.cpus))

    async def _hire_shards(self, apart: list[str]) -> None:
        """On the nodes `apart`, one for each; if there are none, with the workers."""
        ps = self.spec.ps
        if not self.spec.algorithm.uses_parameter_server:
            return
        nodes = apart
        workers = [worker.node for worker in self.workers if worker.node is not None]
        if not apart and workers:
            nodes = with_workers(nodes_alive(), workers, *self._rooms())
        for index in range(ps.shards):
            name = f"{self.job_id}/shard/{index}"
            place = on_node(nodes[index]) if nodes else {}
            if nodes and ps.cpus:
                self.groups.append(self._reserve(name, {"CPU": ps.cpus}, {NODE: nodes[index]}))
                await self.groups[-1].ready()
                place = {"scheduling_strategy": PlacementGroupSchedulingStrategy(self.groups[-1], 0)}
            arguments = (name, self.job_id, self.spec, index)
            options = place | {"num_cpus": ps.cpus}
            self.shards.append(self.start(ShardActor, name, options, self._shard_groups, arguments))
            self.shard_ages.append(self.hired)

    @property
    def _shard_groups(self) -> dict[str, int]:
        """The concurrency groups of a shard; each worker may have a call open."""
        if self.spec.transport != "object_store":
            return SHARD_GROUPS
        return SHARD_GROUPS | OBJECT_STORE_GROUPS | {"listen": self.spec.most_workers + 2 * SPARE_SEATS}

    def replace_shard(self, index: int) -> Any:
        """Start another process in the place of one that died."""
        self.replaced += 1
        name = f"{self.job_id}/shard/{index}-{self.replaced}"
        options = on_node(self.shard_nodes[index]) | {"num_cpus": 0}
        arguments = (name, self.job_id, self.spec, index)
        self.shards[index] = self.start(ShardActor, name, options, self._shard_groups, arguments)
        self.shard_ages[index] = self.hired
        return self.shards[index]

    def promote(self, index: int, copy: Any, node: str) -> None:
        """A shard is now what was its copy."""
        self.copies.remove(copy)
        self.shards[index], self.shard_nodes[index], self.shard_ages[index] = copy, node, self.hired

    def hire_evaluator(self) -> Any:
        """Start the evaluator, when it is first needed."""
        if self.evaluator is None:
            name = f"{self.job_id}/evaluator" + (f"-{self.replaced}" if self.replaced else "")
            self.replaced += 1
            node = next((worker.node for worker in self.workers if worker.node is not None), None)
            options = (on_node(node) if node is not None else {}) | {"num_cpus": 0}
            groups = {CONTROL: 2}
            self.evaluator = self.start(Evaluator, name, options, groups, (name, self.job_id, self.spec))
        return self.evaluator

    @property
    def members(self) -> list[Any]:
        """All actors but the coordinator."""
        return [*(w.actor for w in self.workers), *self._beside_workers]

    @property
    def _beside_workers(self) -> list[Any]:
        return [*self.shards, *self.copies, *([self.evaluator] if self.evaluator else [])]

    async def renew(self) -> None:
        """Tell all but the workers, again and again, that the coordinator lives; those hear it with each beat."""
        while True:
            for member in self._beside_workers:
                member.renew.options(concurrency_group=CONTROL).remote()
            await asyncio.sleep(RENEW_S)

    async def watch(self) -> None:
        """Ask every worker that is ready, again and again, what it does; end those that hang."""
        while True:
            ready = {worker.number: worker for worker in self.workers if worker.prepared is not None}
            self.pulses.watch(ready, time.monotonic())
            for number, why in self.pulses.faults(time.monotonic()).items():
                ready[number].fault = why
                end_process(ready[number])
            for worker in ready.values():
                if worker.asked is None:
                    worker.asked = asyncio.create_task(self._hear(worker))
            await asyncio.sleep(BEAT_S)

    async def _hear(self, worker: Hired) -> None:
        with suppress(ray.exceptions.RayError):
            self.pulses.hear(worker.number, time.monotonic(), await worker.ask("beat"))
        worker.asked = None

    async def dismiss(self) -> None:
        """End all actors and placement groups, and remove what they left on their nodes."""
        sweeps = [worker.ask("sweep") for worker in self.workers]  # and of those whose nodes may have no workers
        sweeps += [member.sweep.options(concurrency_group=CONTROL).remote() for member in [*self.shards, *self.copies]]
        if sweeps:
            with suppress(Exception):  # a dead worker cannot sweep; whoever lives on its node does
                await asyncio.wait_for(asyncio.gather(*sweeps, return_exceptions=True), timeout=5)
        for member in self.members if self.staff is None else self.shards:
            ray.kill(member)
        for group in [*self.groups, *(worker.reservation for worker in self.workers)]:
            if group is not None:
                remove_placement_group(group)
        sweep(self.job_id)

    def draining(self) -> set[str]:
        """The nodes that are about to be taken away."""
        from ray._private.state import state  # Ray has no public call for it

        return set(state.get_draining_nodes())

    def _reserve(self, name: str, bundle: dict[str, float], where: dict[str, str]) -> PlacementGroup:
        """A placement group for one actor, on a node whose labels are so."""
        selector = [where] if where else None
        return placement_group([bundle], name=name, lifetime="detached", bundle_label_selector=selector)

    def start(
        self, kind: type, name: str, options: dict[str, Any], groups: dict[str, int], arguments: tuple[Any, ...]
    ) -> Any:
        if self.staff is None:
            options = options | {"lifetime": "detached"}  # else it dies with this coordinator, and so with the trial
        return start_actor(kind, name, options | {"runtime_env": self.runtime_env}, groups, arguments)


def nodes_alive() -> dict[str, Room]:
    """What each node of the cluster has."""
    alive = [(node["NodeID"], node["Resources"]) for node in ray.nodes() if node["Alive"]]
    return {node_id: Room(has.get("CPU", 0.0), has.get("GPU", 0.0)) for node_id, has in alive}


def end_process(worker: Hired) -> None:
    """End a worker by signal: one that hangs or is stopped hears nothing else."""
    if worker.prepared is None:
        return
    do_on(worker.prepared.place.node_id, kill, worker.prepared.place.pid)


def do_on(node: str, function: Callable[..., None], *arguments: Any) -> None:
    """Have something done on a node, if it lives; the result is not waited for."""
    if node == ray.get_runtime_context().get_node_id():
        function(*arguments)
    elif node in nodes_alive():
        ray.remote(num_cpus=0, max_retries=0)(function).options(**on_node(node)).remote(*arguments)


def kill(pid: int) -> None:
    """End a worker of Ray's, if the process with this number still is one."""
    with suppress(OSError):
        if b"ray::" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)


def on_node(node: str) -> dict[str, Any]:
    """The options of an actor for one node. Soft affinity would not do: on several nodes Ray often does without it."""
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}


async def _ready(group: PlacementGroup) -> None:
    await group.ready()


def _node_of(group: PlacementGroup) -> str:
    """Where the bundle of a group that is ready lies."""
    return str(next(iter(placement_group_table(group)["bundles_to_node_id"].values())))


@dataclass
class Staff:
    """Actors that stay from one run to the next. They die with the process that started them."""

    workers: list[Any]
    evaluator: Any


def start_actor(
    kind: type, name: str, options: dict[str, Any], groups: dict[str, int], arguments: tuple[Any, ...]
) -> Any:
    """An actor that is never restarted and repeats no call by itself."""
    actor = ray.remote(concurrency_groups=groups)(kind).options(
        name=name, namespace=NAMESPACE, max_restarts=0, max_task_retries=0, **options
    )
    return actor.remote(*arguments)


def gone(job_id: str, but: str | None = None) -> None:
    """Kill and remove whatever a run left behind on this cluster and this node, except its actor named `but`; until
    its names are free again. It blocks."""
    for name in _names(job_id, but):
        with suppress(ValueError):
            ray.kill(ray.get_actor(name, NAMESPACE))
    for group in placement_group_table().values():
        if group["name"].startswith(f"{job_id}/") and group["state"] != "REMOVED":
            with suppress(ValueError):
                remove_placement_group(ray.util.get_placement_group(group["name"]))
    sweep(job_id)
    deadline = time.monotonic() + GONE_S
    while _names(job_id, but) and time.monotonic() < deadline:
        time.sleep(0.05)


def _names(job_id: str, but: str | None) -> list[str]:
    """Of actors that Ray still knows of a run."""
    found = ray.util.list_named_actors(all_namespaces=True)
    mine = [entry["name"] for entry in found if entry["namespace"] == NAMESPACE]
    return [name for name in mine if name.startswith(f"{job_id}/") and name != f"{job_id}/{but}"]
