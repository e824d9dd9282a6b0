"""The shards of a run as its coordinator has them: they serve to the end, whichever of their processes or nodes dies.

When a process dies, another one on the same node goes on from what it left there. When the node is lost, the shard's
standby on another node serves.
"""

import asyncio
import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import ray

from trainers.elastic.failure_policy import ATTEMPTS
from trainers.errors import ShardLost
from trainers.parameter_server.endpoints import StoreEndpoint
from trainers.runtime.actor_handles import CONTROL
from trainers.runtime.actor_pool import ActorPool
from trainers.runtime.control.run_events import EventQueue, ShardBack, ShardDied
from trainers.runtime.control.run_log import RunLog
from trainers.runtime.control.standbys import Standbys
from trainers.runtime.gone import GONE, how
from trainers.runtime.messages import ActorLocation, Prepared
from trainers.runtime.nodes import nodes_alive

LOOK_S = 0.5
"""Between two looks whether a node is alive."""


class ShardGroup:
    """Asks all shards. If one dies meanwhile, the question is put again to the process that replaces it."""

    def __init__(self, pool: ActorPool, standbys: Standbys, log: RunLog, events: EventQueue) -> None:
        self.pool = pool
        self.standbys = standbys
        self.log = log
        self.events = events
        self.endpoint: StoreEndpoint  # how workers reach the shards, from `open` or `take_back` on
        self.prepared: Prepared  # from `open` or `take_back` on
        self.folders: dict[int, str] = {}  # of shards that were standbys: where their files lie on their nodes
        self.serving: list[Any] = []  # by index: the actors that serve
        self.replaced = asyncio.Condition()
        self.replaces_dead = False  # a question to a dead shard waits for the process that replaces it
        self.kept: list[Any] | None = None  # references to each one's last snapshot, where its memory dies with it

    async def open(self, endpoint: StoreEndpoint, prepared: Prepared, start: Any) -> None:
        """Give all shards the first version: `start` as `Worker.initial` gives it."""
        self.endpoint, self.prepared, self.serving = endpoint, prepared, list(self.pool.shards)
        await asyncio.gather(*[self._open(index, start) for index in range(len(self.serving))])

    async def _open(self, index: int, start: Any) -> None:
        """Give a shard the first version, or the process that takes its place if it dies over it."""
        for attempt in itertools.count(1):
            shard = self.serving[index]
            try:
                await shard.open.options(concurrency_group=CONTROL).remote(self.endpoint, self.prepared, start)
            except GONE as error:
                if attempt == ATTEMPTS or self.pool.is_trial:
                    raise
                why = self.pool.why_gone(shard, how(error))
                self.log.write("fault", {"actor": f"{self.pool.job_id}/shard/{index}", "why": why, "examples": 0})
                self.serving[index] = self.pool.restart_shard(index)
            else:
                return

    async def take_back(self, endpoint: StoreEndpoint, prepared: Prepared, folders: Mapping[int, str]) -> None:
        """Adopt shards that serve already, each in its folder, and let workers find them at `endpoint`."""
        self.endpoint, self.prepared, self.serving = endpoint, prepared, list(self.pool.shards)
        self.folders = dict(folders)
        await asyncio.gather(*self._calls("meet", endpoint))

    async def places(self) -> list[ActorLocation]:
        """Where each is."""
        return list(await asyncio.gather(*self._calls("place")))

    # -- serving --------------------------------------------------------------------------------------------------

    async def serve(self, index: int) -> None:
        """Have a shard serve. Returns when it has ended, or its process has died; the queue says which process did."""
        self.replaces_dead = True
        try:
            await self.pool.shards[index].serve.options(concurrency_group="serve").remote()
        except GONE:
            self.standbys.depose(index)
            ray.kill(self.serving[index])  # it may be alive all the same, and only not answer
            self.events.put_nowait(ShardDied(index))

    async def replace(self, index: int) -> None:
        """Have another process go on in place of one that died; the queue says when it serves, or that it died too.

        Raises:
            ShardLost: Nothing is left from which another process could go on.
        """
        dead = self.serving[index]
        version = await self._recover(index)
        if version is None:
            if self.pool.shard_nodes[index] in nodes_alive():
                self.events.put_nowait(ShardDied(index))
                return
            version = await self._promote_standby(index, dead)
        async with self.replaced:
            self.serving[index] = self.pool.shards[index]
            self.replaced.notify_all()
        self.standbys.serves_anew(index)
        self.events.put_nowait(ShardBack(index, version))

    async def keep_standby(self, index: int) -> None:
        """Keep a second copy of a shard on another node, whenever there is a node for one. Until cancelled."""
        await self.standbys.keep(index, self.endpoint, self.prepared, self.serving)

    async def _recover(self, index: int) -> int | None:
        """The version from which another process on the same node goes on. None if that process died, or the node."""
        node, last = self.pool.shard_nodes[index], self.kept[index] if self.kept is not None else None
        while node in nodes_alive():
            shard = self.pool.replace_shard(index)
            ref = shard.recover.options(concurrency_group=CONTROL).remote(self._endpoint_of(index), self.prepared, last)
            recovering = asyncio.ensure_future(_version(ref))
            while node in nodes_alive() and not recovering.done():  # Ray may report the process long before the node
                await asyncio.wait([recovering], timeout=LOOK_S)
            if not recovering.done():
                recovering.cancel()
                ray.kill(shard)
                continue
            error = recovering.exception()
            if error is None:
                return recovering.result()
            if isinstance(error, ray.exceptions.RayTaskError) or not isinstance(error, ray.exceptions.RayError):
                raise error
            if node in nodes_alive():
                return None
        return None

    async def _promote_standby(self, index: int, dead: Any) -> int:
        """The version from which the standby on another node goes on, when it serves.

        Raises:
            ShardLost: There is no standby that has everything.
        """
        standby = self.standbys.take(index, dead)
        if standby is None or standby.where is None:
            raise ShardLost(f"the node of shard {index} was lost, and the shard had no second copy on another")
        self.pool.promote(index, standby.actor, standby.node)
        self.folders[index] = standby.where.folder
        recover = standby.actor.recover.options(concurrency_group=CONTROL)
        version: int = await recover.remote(self._endpoint_of(index), self.prepared)
        self.log.line("info", f"the second copy of shard {index} serves, on node {standby.where.place.node_ip}")
        return version

    def _endpoint_of(self, index: int) -> StoreEndpoint:
        return replace(self.endpoint, folder=self.folders.get(index, self.endpoint.folder))

    # -- asking ---------------------------------------------------------------------------------------------------

    async def applied(self) -> list[Any]:
        """What each has applied: rows of epoch, group, first and last minibatch."""
        return await self._ask("applied")

    async def lost(self) -> int:
        """Updates that workers had heard of, and that shards without a second copy have lost."""
        return sum(await self._ask("lost"))

    async def agree(self) -> int:
        """Between two generations of a synchronous run: all go back to the newest version that all have made.

        Returns its number.
        """
        made: int = min(await self._ask("version"))
        await self._ask("prepare_generation", made)
        return made

    async def keep_first_snapshot(self) -> None:
        """Have something to go on from, where the memory of a shard dies with it. The shards must serve already."""
        if self._keeps_snapshots:
            await self.snapshot(0)

    async def snapshot(self, version: int) -> list[Any]:
        """References to a copy of each slice with all that belongs to it, as soon as it has made so many updates."""
        found = list(await asyncio.gather(*[self._snapshot_one(i, version) for i in range(len(self.serving))]))
        if self._keeps_snapshots:
            self.kept = found
        return found

    @property
    def _keeps_snapshots(self) -> bool:
        """Whether a shard's last snapshot is kept to go on from: where every push is an update of its own. The steps of
        a synchronous run are made on all shards or on none, and one that is steps behind would spoil its result."""
        spec = self.pool.spec
        return spec.ps.replicas == 1 and spec.algorithm.traits.quorum(spec.workers.num_virtual) == 0

    async def _snapshot_one(self, index: int, version: int) -> Any:
        """Two results, so that one can be awaited without fetching the large one to this process."""
        options = {"concurrency_group": "snapshot", "num_returns": 2}

        async def snapshot(shard: Any) -> Any:
            made, snapshot = shard.snapshot.options(**options).remote(version)
            await made
            return snapshot

        return await self._of(index, snapshot)

    async def _ask(self, method: str, *arguments: Any) -> list[Any]:
        async def one(shard: Any) -> Any:
            return await getattr(shard, method).options(concurrency_group=CONTROL).remote(*arguments)

        return list(await asyncio.gather(*[self._of(index, one) for index in range(len(self.serving))]))

    async def _of(self, index: int, question: Callable[[Any], Any]) -> Any:
        """What a shard answers, or the process that replaces it."""
        while True:
            shard = self.serving[index]
            try:
                return await question(shard)
            except GONE:
                if not self.replaces_dead:
                    raise
                async with self.replaced:
                    await self.replaced.wait_for(lambda dead=shard: self.serving[index] is not dead)  # type: ignore[misc]

    def _calls(self, method: str, *arguments: Any) -> list[Any]:
        return [
            getattr(shard, method).options(concurrency_group=CONTROL).remote(*arguments) for shard in self.pool.shards
        ]


async def _version(reference: Any) -> int:
    found: int = await reference
    return found
