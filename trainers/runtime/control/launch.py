"""Starts the actors of a run from nothing."""

import asyncio
import os
from dataclasses import asdict

import ray

from trainers.elastic import binding
from trainers.elastic.failure_policy import FailurePolicy
from trainers.errors import DataChanged, SpecRejected, WorkerDied
from trainers.events import NO_ROOM, State
from trainers.runtime.actor_handles import CONTROL, WorkerHandle
from trainers.runtime.cluster.connection import ray_settings
from trainers.runtime.cluster.patience import too_impatient
from trainers.runtime.code_package import given_names
from trainers.runtime.control.parts import RunParts
from trainers.runtime.control.run_events import StartedRun
from trainers.runtime.control.run_log import LogSummary
from trainers.runtime.gone import GONE, LACKED_MEMORY, how
from trainers.runtime.memory import ENDED, REMEDY, ended_for_memory, with_remedy
from trainers.runtime.messages import ActorLocation, Prepared
from trainers.runtime.node_folder import cleanup
from trainers.runtime.nodes import died_with
from trainers.spec.advice import advice

PREPARING_S = 10.0
"""Between two states that say what a long start is waiting for."""


class Launcher:
    """Gets workers and shards ready to train."""

    def __init__(self, parts: RunParts) -> None:
        self.parts = parts
        self.failures = FailurePolicy()

    async def start(self, least: int, before: LogSummary) -> StartedRun:
        """Start workers, at least so many, and shards; have all of them prepare.

        A worker tries the spec on one minibatch. Once it has trained, the spec is good, and what user code raises is
        the worker's fault, after which another one goes on.

        Args:
            least: Workers with which the run may start.
            before: What the log says, for a coordinator in the place of one that died.

        Raises:
            SpecRejected: The cluster, the data or the model do not allow the spec.
            DataChanged: A Ray Dataset that was executed anew has other rows.
        """
        pool, spec, tries = self.parts.pool, self.parts.config.spec, not before.has_trained
        cleanup(self.parts.config.job_id)  # files of an earlier run with this id on this node
        self.parts.standbys.open({}, 0)
        if spec.data.kind == "ray":
            await self._execute_dataset(before.digests)
        await self.parts.predictions.prepare(is_first=tries)
        await pool.start_all(least)
        warming = asyncio.gather(*[self._warm_shard(index) for index in range(len(pool.shards))])
        try:
            if spec.data.download:  # one worker fetches the data, the others find it
                await self._prepare(0, tries)
            prepared = list(await asyncio.gather(*[self._prepare(rank, tries) for rank in range(len(pool.workers))]))
            places = list(await warming)
        finally:
            warming.cancel()
        pool.locate_shards(places)
        self._log_actors(prepared, places)
        for fault in prepared[0].damaged:
            self.parts.log.line("warning", f"{fault}; begins from the checkpoint before it")
        for sentence in prepared[0].data:
            self.parts.log.line("info", f"data: {sentence}")
        if prepared[0].weights:
            self.parts.log.line("warning", prepared[0].weights)
        if prepared[0].compiled_s:
            self.parts.log.line("info", f"compiled the model for a whole minibatch in {prepared[0].compiled_s:.1f} s")
        if prepared[0].slow:
            self.parts.log.line("warning", prepared[0].slow)
        self._say_of_products(prepared[0])
        if prepared[0].cores.nodes and prepared[0].device == "cpu":
            bound = binding.why(prepared[0].cores, spec.workers.threads, spec.workers.bind)
            self.parts.log.line("info", f"workers.bind: {bound}")
        if names := given_names(spec):
            self.parts.log.line("info", f"trains {', '.join(names)}, as given to train(); a resume needs them again")
        for sentence in advice(spec, prepared[0].num_examples):
            self.parts.log.line("warning", sentence)
        self._say_if_ray_gives_up_early(prepared)
        if pool.shards:
            endpoint = self.parts.topology.open_shards(prepared, places)
            await self.parts.shards.open(endpoint, prepared[0], pool.workers[0].ask("initial"))
        return StartedRun(prepared[0], groups_of(self.parts, pool.workers, prepared))

    def _say_if_ray_gives_up_early(self, prepared: list[Prepared]) -> None:
        """Where groups may be cut off for longer than Ray bears it."""
        apart_s, nodes = self.parts.config.spec.algorithm.traits.apart_s, {p.place.node_id for p in prepared}
        if apart_s and len(nodes) > 1 and (sentence := too_impatient(apart_s, ray_settings())):
            self.parts.log.line("warning", sentence)

    async def _execute_dataset(self, before: tuple[str, ...]) -> None:
        """Have the Ray Dataset executed, which needs CPUs: before the workers take theirs. before: Its digests when it
        was executed last."""
        if self.parts.config.is_trial:
            raise SpecRejected("data: a sweep's trials hold the CPUs that a Ray Dataset is executed on; name its files")
        self.parts.log.line("info", "data: executes the Ray Dataset, before the workers take their CPUs")
        execute = self.parts.pool.start_dataset().execute
        found = await execute.remote()
        sizes = [
            f"{sum(blocks.rows):,} rows lie in the object store, in {len(blocks.rows)} blocks of {blocks.num_bytes:,} "
            "bytes in all"
            for blocks in found
        ]
        digests = tuple(blocks.digest for blocks in found)
        if before and digests != before:
            raise DataChanged(
                f"executed anew, the Ray Dataset gives {', '.join(digests)}, and gave {', '.join(before)} before; the "
                "run cannot go on with other examples. Give random_shuffle and whatever else draws in the Dataset a "
                "seed, leave what it reads as it is, and start the run again from its beginning"
            )
        self.parts.log.executed(sizes, digests)

    async def say_what_is_awaited(self, state: State) -> None:
        """Log again and again what a long start waits for, until cancelled. state: That in which the run is."""
        said = None
        while True:
            await asyncio.sleep(PREPARING_S)
            reason, what = NO_ROOM, await self.parts.pool.what_room_is_awaited()
            if what is None:
                reason, what = "Preparing", self.parts.watch.what_is_awaited()
            if what is not None and what != said:  # a cluster may need hours to grow
                self.parts.log.state(state, reason, what)
            said = what

    async def _prepare(self, rank: int, tries: bool) -> Prepared:
        """Have a worker get ready, or the one that takes its place if it dies over it; worker 0 tries the spec, if any
        does, and chooses the library of the products."""
        while True:
            worker = self.parts.pool.workers[rank]
            if worker.prepared is not None:
                return worker.prepared
            node = worker.node
            try:
                return await worker.prepare(chooses=rank == 0, tries=tries and rank == 0)
            except GONE as error:
                known = self.parts.watch.memory_kills(worker.actor)
                await self._lose(worker.name, worker.fault or how(error), node, known)
                self.parts.pool.restart_worker(rank)

    async def _warm_shard(self, index: int) -> ActorLocation:
        """Have a shard import what it needs, or the process that takes its place if it dies over it."""
        pool = self.parts.pool
        while True:
            try:
                place: ActorLocation = await pool.shards[index].prepare.options(concurrency_group=CONTROL).remote()
            except GONE as error:
                why = pool.why_gone(pool.shards[index], how(error))
                await self._lose(f"{pool.job_id}/shard/{index}", why, None)
                pool.restart_shard(index)
            else:
                return place

    async def _lose(self, name: str, why: str, node: str | None, known: tuple[str, int] | None = None) -> None:
        """Log a death before the first step.

        Args:
            node: Where it was; the death counts unless the node has died.
            known: As in `ended_for_memory`.

        Raises:
            WorkerDied: That was one too many, or the run replaces none.
        """
        why = f"{why} before it was ready"
        self.parts.log.write("fault", {"actor": name, "why": why, "examples": 0})
        if self.parts.config.is_trial:
            raise WorkerDied(f"{name} {why}, and a trial's processes are not replaced")
        if await died_with(node):
            return
        if why.startswith(LACKED_MEMORY):
            self.parts.log.line("error", f"{name} {LACKED_MEMORY}: {REMEDY}")
        elif await ended_for_memory(known):
            self.parts.log.line("error", f"{name} {ENDED}: {REMEDY}")
            why = f"{ENDED} before it was ready"
        if (decision := self.failures.failed(f"{name} {why}")) is not None:
            raise WorkerDied(with_remedy(decision.message))

    def _say_of_products(self, first: Prepared) -> None:
        self.parts.snapshots.begin(first)
        products = first.products
        if products.measured:
            self.parts.log.line("info", products.sentence)
        if first.other_processor:
            told = f"the checkpoint was written on {first.other_processor}, and the products were chosen anew for"
            self.parts.log.line("warning", f"{told} {products.processor}: bits may differ from those of one run there")

    def _log_actors(self, prepared: list[Prepared], shards: list[ActorLocation]) -> None:
        self.parts.log.write("actors", {
            "workers": [asdict(one.place) for one in prepared],
            "shards": [asdict(place) for place in shards],
            "coordinator": {
                "name": f"{self.parts.config.job_id}/coordinator", "pid": os.getpid(),
                "actor_id": ray.get_runtime_context().get_actor_id(),
            },
        })  # fmt: skip


def groups_of(
    parts: RunParts, workers: list[WorkerHandle], prepared: list[Prepared]
) -> tuple[tuple[WorkerHandle, ...], ...]:
    """The workers that go on step by step together, as the algorithm divides them."""
    ranks = parts.config.spec.algorithm.groups([one.place.node_id for one in prepared])
    return tuple(tuple(workers[rank] for rank in group) for group in ranks)
