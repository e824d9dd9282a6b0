"""The shards of a run as its coordinator has them: they serve to the end, whichever of their processes or nodes dies.

In the place of a dead process another goes on from what it left on its node; where the node is lost, the shard's copy
on another one serves.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import ray

from trainers.errors import ShardLost
from trainers.runtime.copies import Copies
from trainers.runtime.crew import CONTROL, Crew, nodes_alive
from trainers.runtime.messages import Exchange, Place, Prepared
from trainers.runtime.outcome import settled

LOOK_S = 0.5
"""Between two looks whether a node lives."""


class Shards:
    """Ask all of them; one that dies meanwhile is asked again when another process is in its place."""

    def __init__(
        self, crew: Crew, copies: Copies, died: Callable[[int], None], back: Callable[[int, int], None]
    ) -> None:
        """died: Told which shard did, by its index; raises RunFailed if that was one too many. back: Told which one
        serves again, and from which version on."""
        self.crew = crew
        self.copies = copies
        self.died = died
        self.back = back
        self.exchange: Exchange
        self.prepared: Prepared
        self.folders: dict[int, str] = {}  # of shards that were copies: where what they hold lies on their nodes
        self.serving: list[Any] = []  # by index: the actors that serve
        self.changed = asyncio.Condition()
        self.watched = False  # whether somebody replaces those that die
        self.kept: list[Any] | None = None  # references to each one's last snapshot, where its memory dies with it

    async def begin(self, exchange: Exchange, prepared: Prepared, start: Any) -> None:
        """Give all the first version: `start` as `Worker.initial` gives it."""
        self.exchange, self.prepared, self.serving = exchange, prepared, list(self.crew.shards)
        await settled(self._calls("open", exchange, prepared, start))

    async def take_back(self, exchange: Exchange, prepared: Prepared, folders: Mapping[int, str]) -> None:
        """They serve already, each in its folder; workers are to find them anew."""
        self.exchange, self.prepared, self.serving = exchange, prepared, list(self.crew.shards)
        self.folders = dict(folders)
        await settled(self._calls("meet", exchange))

    async def places(self) -> list[Place]:
        """Where each is."""
        return list(await settled(self._calls("place")))

    async def applied(self) -> list[Any]:
        """What each has applied: rows of epoch, group, first and last minibatch."""
        return await self._ask("applied")

    async def keep(self) -> None:
        """Have something to go on from, where the memory of a shard dies with it. They must serve already."""
        if self._keeps:
            await self.snapshot(0)

    async def lost(self) -> int:
        """Updates that workers had heard of and that shards without a second copy have lost."""
        return sum(await self._ask("lost"))

    async def agree(self) -> int:
        """Between two generations of a synchronous run: all go back to the newest version that all have made.

        Returns its number.
        """
        made: int = min(await self._ask("version"))
        await self._ask("prepare_generation", made)
        return made

    async def snapshot(self, version: int) -> list[Any]:
        """References to a copy of each slice with all that belongs to it, as soon as it has made so many updates."""
        found = list(await asyncio.gather(*[self._copy(index, version) for index in range(len(self.serving))]))
        if self._keeps:
            self.kept = found
        return found

    async def serve(self, index: int) -> None:
        """Have a shard serve to the end, or another process in its place if it dies.

        Raises:
            ShardLost: It has left nothing from which another could go on.
            RunFailed: Too many have died.
        """
        self.watched = True
        while True:
            try:
                await self.crew.shards[index].serve.options(concurrency_group="serve").remote()
            except ray.exceptions.RayActorError:
                self.died(index)
                await self._replace(index)
            else:
                return

    @property
    def _keeps(self) -> bool:
        """Whether a shard's last snapshot is kept to go on from: where every push is an update of its own. The steps of
        a synchronous run are made on all shards or on none, and one that is steps behind would spoil its result."""
        spec = self.crew.spec
        return spec.ps.replicas == 1 and spec.algorithm.quorum(spec.workers.num_virtual) == 0

    async def copy(self, index: int) -> None:
        """Have a shard have a second copy on another node, wherever there is one."""
        await self.copies.keep(index, self.exchange, self.prepared, self.serving)

    async def _replace(self, index: int) -> None:
        dead = self.serving[index]
        self.copies.depose(index)
        ray.kill(dead)  # if it lives all the same, and only does not answer
        version = await self._recovered(index)
        if version is None:
            version = await self._promoted(index, dead)
        async with self.changed:
            self.serving[index] = self.crew.shards[index]
            self.changed.notify_all()
        self.copies.news(index)
        self.back(index, version)

    async def _recovered(self, index: int) -> int | None:
        """The version from which another process on the same node goes on; none if that node is lost."""
        node, last = self.crew.shard_nodes[index], self.kept[index] if self.kept is not None else None
        while node in nodes_alive():
            shard = self.crew.replace_shard(index)
            ref = shard.recover.options(concurrency_group=CONTROL).remote(self._exchange(index), self.prepared, last)
            recovering = asyncio.ensure_future(_version(ref))
            while node in nodes_alive() and not recovering.done():  # Ray may tell of the process long before the node
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
                self.died(index)
        return None

    async def _promoted(self, index: int, dead: Any) -> int:
        """The version from which the copy on another node goes on, when it serves.

        Raises:
            ShardLost: There is none that has all.
        """
        copy = self.copies.take(index, dead)
        if copy is None or copy.where is None:
            raise ShardLost(f"the node of shard {index} was lost, and the shard had no second copy on another")
        self.crew.promote(index, copy.actor, copy.node)
        self.folders[index] = copy.where.folder
        recover = copy.actor.recover.options(concurrency_group=CONTROL)
        version: int = await recover.remote(self._exchange(index), self.prepared)
        self.copies.tell("info", f"the second copy of shard {index} serves, on node {copy.where.place.node_ip}")
        return version

    def _exchange(self, index: int) -> Exchange:
        return replace(self.exchange, folder=self.folders.get(index, self.exchange.folder))

    async def _copy(self, index: int, version: int) -> Any:
        """Two results, so that one waits without having the large one here."""
        options = {"concurrency_group": "snapshot", "num_returns": 2}

        async def copy(shard: Any) -> Any:
            made, copied = shard.snapshot.options(**options).remote(version)
            await made
            return copied

        return await self._of(index, copy)

    async def _ask(self, method: str, *arguments: Any) -> list[Any]:
        async def one(shard: Any) -> Any:
            return await getattr(shard, method).options(concurrency_group=CONTROL).remote(*arguments)

        return list(await asyncio.gather(*[self._of(index, one) for index in range(len(self.serving))]))

    async def _of(self, index: int, question: Callable[[Any], Any]) -> Any:
        """What a shard answers, or whoever takes its place."""
        while True:
            shard = self.serving[index]
            try:
                return await question(shard)
            except ray.exceptions.RayActorError:
                if not self.watched:
                    raise
                async with self.changed:
                    await self.changed.wait_for(lambda dead=shard: self.serving[index] is not dead)  # type: ignore[misc]

    def _calls(self, method: str, *arguments: Any) -> list[Any]:
        return [
            getattr(shard, method).options(concurrency_group=CONTROL).remote(*arguments) for shard in self.crew.shards
        ]


async def _version(reference: Any) -> int:
    found: int = await reference
    return found
