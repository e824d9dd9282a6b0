"""What a coordinator does that replaces one that died: it takes over the actors that are left, or begins again."""

import asyncio
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from typing import Any

import ray

from trainers.elastic.latest_version import latest_of
from trainers.runtime.actor_handles import CONTROL, WorkerHandle, kill_run
from trainers.runtime.cluster import NAMESPACE
from trainers.runtime.control.actor_watch import ActorWatch
from trainers.runtime.control.launch import groups_of
from trainers.runtime.control.parts import RunParts
from trainers.runtime.control.run_events import StartedRun, Survivors
from trainers.runtime.control.run_log import LogSummary
from trainers.runtime.gone import LACKED_MEMORY, THRESHOLD, lacked_memory, predecessor_lacked_memory
from trainers.runtime.memory import REMEDY
from trainers.runtime.messages import Prepared, WorkerStatus
from trainers.spec import TrainSpec

ANSWER_S = 60.0
"""An actor that has not said a word by then is not taken over: Ray may never start it."""


class Recovery:
    """Goes on with the actors that survived, from the newest version that one of the workers or the shards have."""

    def __init__(self, parts: RunParts) -> None:
        self.parts = parts

    async def find_survivors(self, incarnation: int, lost: Collection[str]) -> Survivors:
        """Find the run's actors by name, and have the workers end their generation. Actors that are of no use are
        ended.

        Args:
            incarnation: How many coordinators of the run have died.
            lost: Names of the actors of whose loss the log tells.
        """
        await self._say_who_lacked_memory(lost)
        return await find_survivors(self.parts.config.job_id, incarnation, self.parts.watch)

    async def _say_who_lacked_memory(self, lost: Collection[str]) -> None:
        """Ray's memory monitor ends several processes of a node one after the other, and nobody has told of those that
        it has ended since the coordinator."""
        job_id, log = self.parts.config.job_id, self.parts.log
        if await asyncio.to_thread(predecessor_lacked_memory):
            why = f"{LACKED_MEMORY}, which ends first what it can start again"
            log.line("error", f"{job_id}/coordinator {why}: {REMEDY}; {THRESHOLD}")
        for name in await asyncio.to_thread(lacked_memory, job_id):
            if name not in lost:
                log.write("fault", {"actor": name, "why": LACKED_MEMORY})
                log.line("error", f"{name} {LACKED_MEMORY}: {REMEDY}")

    async def take_back(self, found: Survivors, before: LogSummary) -> StartedRun:
        """Adopt the survivors. before: What the log said when this coordinator began."""
        pool, topology, log = self.parts.pool, self.parts.topology, self.parts.log
        shards = [found.shards[i] for i in sorted(found.shards)]
        pool.take_back(found.workers, shards, found.dataset, found.num_replaced + 1)
        self.parts.watch.survivors = ([], [])
        incarnations = {i: status.incarnation for i, status in found.shard_statuses.items()}
        self.parts.standbys.open(incarnations, found.num_replaced)
        topology.resume_after(found.generation, found.store_worker)
        prepared = [worker.prepared for worker in found.workers if worker.prepared is not None]
        log.show_workers([one.place for one in prepared])
        self.parts.snapshots.begin(prepared[0])
        self.parts.snapshots.restore(before.evaluations)
        started = StartedRun(
            prepared[0], groups_of(self.parts, found.workers, prepared), is_new=False, endings=tuple(found.endings)
        )
        return await self._take_back_shards(found, started) if found.shards else started

    async def _take_back_shards(self, found: Survivors, started: StartedRun) -> StartedRun:
        shards = self.parts.shards
        endpoint = self.parts.topology.reopen(found.shard_statuses[0].endpoint)
        folders = {index: status.endpoint.folder for index, status in found.shard_statuses.items()}
        await shards.take_back(endpoint, started.prepared, folders)
        self.parts.pool.locate_shards(await shards.places())
        position = replace(started.prepared.position, applied=tuple(await shards.applied()))
        prepared: Prepared = replace(started.prepared, position=position)
        updates = await shards.agree() if self.parts.config.spec.algorithm.traits.is_synchronous else None
        return replace(started, prepared=prepared, updates=updates)

    async def remove_leftovers(self, found: Survivors) -> None:
        """End the survivors, which cannot go on, so that the run can begin again from its last checkpoint."""
        self.parts.watch.survivors = ([], [])
        await asyncio.to_thread(kill_run, self.parts.config.job_id, but="coordinator")
        self.parts.topology.resume_after(found.generation + 1, -1)
        self.parts.pool.resume_from(self.parts.config.latest_checkpoint())


def can_go_on(found: Survivors, spec: TrainSpec) -> bool:
    """Whether the survivors have what a run needs: workers, and a whole version of the parameters."""
    if spec.algorithm.traits.uses_parameter_server:
        return bool(found.workers) and len(found.shards) == spec.ps.shards
    return bool(found.workers) and latest_of(found.endings) is not None


async def find_survivors(job_id: str, incarnation: int, watch: ActorWatch) -> Survivors:
    """As `Recovery.find_survivors` says. watch: Ends those that are stopped or hang meanwhile."""
    found, serving = Survivors(), list[tuple[int, Any]]()
    for name in sorted({entry["name"] for entry in ray.util.list_named_actors(all_namespaces=True)}):
        kind, _, rest = name.removeprefix(f"{job_id}/").partition("/")
        if not name.startswith(f"{job_id}/") or kind.startswith("coordinator"):
            continue
        number, _, replaced = rest.partition("-") if rest else kind.partition("-")
        found.num_replaced = max(found.num_replaced, int(replaced or 0))
        with suppress(ValueError):
            actor = ray.get_actor(name, NAMESPACE)
            if kind == "worker":
                found.workers.append(WorkerHandle(int(number), name, actor, _reservation(name)))
            elif kind in ("shard", "standby"):  # a standby may have become the shard
                serving.append((int(number), actor))
            elif kind == "dataset":  # whose blocks nobody need make again
                found.dataset = actor
            else:
                ray.kill(actor)
    watch.survivors = [*found.workers], [actor for _, actor in serving]
    await _ask_shards(serving, found, watch)
    await _ask_workers(found, incarnation, watch)
    return found


async def _ask_shards(serving: list[tuple[int, Any]], found: Survivors, watch: ActorWatch) -> None:
    """Find out which of the actors serve. A standby does not: nobody knows what it was sent last, so it is ended, and
    another one is started."""
    statuses = await asyncio.gather(*[_answer(watch, actor, "status") for _, actor in serving])
    for (index, actor), status in zip(serving, statuses, strict=True):
        if status is None:
            ray.kill(actor)
        else:
            found.shards[index], found.shard_statuses[index] = actor, status


async def _ask_workers(found: Survivors, incarnation: int, watch: ActorWatch) -> None:
    """Have the workers end their generation. One that does not answer is ended, and another will be started: it was not
    ready yet, or is dead, or hangs."""
    calls = [_answer(watch, worker.actor, "resign", incarnation) for worker in found.workers]
    statuses: list[WorkerStatus | None] = await asyncio.gather(*calls)
    for worker, status in zip(list(found.workers), statuses, strict=True):
        if status is None:
            found.workers.remove(worker)
            with suppress(ValueError):
                ray.kill(worker.actor)
            continue
        worker.prepared = status.prepared
        found.endings += [status.ended] if status.ended is not None else []
        found.generation = max(found.generation, status.generation)
        found.store_worker = max(found.store_worker, status.store_worker)


async def _answer(watch: ActorWatch, actor: Any, method: str, *arguments: Any) -> Any:
    """What an actor answers, once the step that it is in is over; None if it does not."""
    answer = asyncio.ensure_future(_result(getattr(actor, method).options(concurrency_group=CONTROL), arguments))
    with suppress(ray.exceptions.RayError):
        while not (await asyncio.wait([answer], timeout=ANSWER_S))[0]:
            if not watch.has_answered(actor):
                answer.cancel()
                return None
        return answer.result()
    return None


async def _result(method: Any, arguments: tuple[Any, ...]) -> Any:
    return await method.remote(*arguments)


def _reservation(name: str) -> Any:
    with suppress(ValueError):
        return ray.util.get_placement_group(name)
    return None
