"""The second copies of a run's shards, on other nodes than the shards: started, watched, and one that dies replaced.

A copy may serve in its shard's place only if it has all that the shard has acknowledged. So a shard that misses its
copy asks here before it goes on without (`parted`), and nobody else lets it: from then on the copy counts for nothing.
And a shard that was taken for dead is told so.
"""

import asyncio
import itertools
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray

from trainers.elastic.placement import for_copy
from trainers.runtime.crew import CONTROL, Crew, do_on, kill, nodes_alive, on_node
from trainers.runtime.messages import CopyPlace, Exchange, Prepared
from trainers.runtime.node_folder import where
from trainers.runtime.shard import GROUPS
from trainers.runtime.shard_copy import CopyActor

LOOK_S = 5.0
"""Between two looks for a node, where there is none for a copy."""

PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
"""Before another copy in the place of a lost one: twice as long each time."""


@dataclass(eq=False)
class Copy:
    """The copy of one shard."""

    actor: Any
    name: str
    node: str
    where: CopyPlace | None = None
    """Once it listens."""
    source: Any = None
    """The shard's actor that has sent it all, and sends it what comes."""


class Copies:
    """At most one of each shard."""

    def __init__(self, crew: Crew, tell: Callable[[str, str], None]) -> None:
        """tell: Writes a line of the log: level and message."""
        self.crew = crew
        self.tell = tell
        self.of: dict[int, Copy] = {}  # by the shard's index
        self.reigns: Counter[int] = Counter()  # how many processes of each shard were taken for dead
        self.opened = asyncio.Event()  # when that is known
        self.changed: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)
        self.numbers = itertools.count(1)
        self.lost: Counter[int] = Counter()  # how many of each shard were given up
        self.watches: set[asyncio.Task[None]] = set()

    def open(self, reigns: Mapping[int, int], names: int) -> None:
        """Begin; where another has kept copies before, with what its shards tell, and after so many `names`."""
        self.reigns, self.numbers = Counter(reigns), itertools.count(names + 1)
        self.opened.set()

    async def keep(self, index: int, exchange: Exchange, prepared: Prepared, serving: list[Any]) -> None:
        """Have a copy of this shard wherever there is a node for one, until cancelled.

        Args:
            index: The shard's.
            exchange: As the shard was given it.
            prepared: Likewise.
            serving: By index, the actors that serve; they change.
        """
        if self.crew.spec.ps.replicas == 1 or exchange.transport != "process_group" or self.crew.staff is not None:
            return  # there is to be none; there is one node; or a trial, whose processes are not replaced
        while True:
            self.changed[index].clear()
            try:
                if index not in self.of:
                    await asyncio.sleep(self._pause_s(index))
                    await self._start(index, exchange, prepared)
                await self._fill(index, serving[index])
            except ray.exceptions.RayError as error:
                self._give_up(index, f"it did not begin: {str(error).strip().splitlines()[-1]}")
            with suppress(TimeoutError):
                await asyncio.wait_for(self.changed[index].wait(), LOOK_S)

    async def parted(self, index: int, reign: int, copy: str, why: str) -> bool:
        """A shard misses its copy, which is given by its name. Whether it may go on without: not if it was taken for
        dead itself since it was given that copy."""
        await self.opened.wait()
        if reign != self.reigns[index]:
            return False
        if index in self.of and self.of[index].name == copy:
            self._give_up(index, why)
        return True

    def depose(self, index: int) -> None:
        """The process that serves this shard is taken for dead."""
        self.reigns[index] += 1

    def take(self, index: int, dead: Any) -> Copy | None:
        """The copy that is to serve in the place of a dead shard, if it has all that this one has acknowledged."""
        copy = self.of.get(index)
        if copy is None or copy.source is not dead:
            return None
        return self.of.pop(index)

    def news(self, index: int) -> None:
        """Another process of the shard serves."""
        self.changed[index].set()

    def close(self) -> None:
        """Follow none of them any more, and tell nothing."""
        for watch in self.watches:
            watch.cancel()
        self.of.clear()

    def _pause_s(self, index: int) -> float:
        lost = self.lost[index]
        return min(LONGEST_PAUSE_S, PAUSE_S * 2**lost) if lost else 0.0

    async def _start(self, index: int, exchange: Exchange, prepared: Prepared) -> None:
        node = self._node_for(index)
        if node is None:
            return
        name = f"{self.crew.job_id}/copy/{index}-{next(self.numbers)}"
        arguments = (name, self.crew.job_id, self.crew.spec, index)
        actor = self.crew.start(CopyActor, name, on_node(node) | {"num_cpus": 0}, GROUPS, arguments)
        copy = self.of[index] = Copy(actor, name, node)
        self.crew.copies.append(actor)
        copy.where = await actor.hold.options(concurrency_group=CONTROL).remote(exchange, prepared)
        watch = asyncio.create_task(self._watch(index, copy))
        self.watches.add(watch)
        watch.add_done_callback(self.watches.discard)

    def _node_for(self, index: int) -> str | None:
        """None where there is none beside the shard's own that will stay."""
        draining, held = self.crew.draining(), [*self.crew.shard_nodes, *(copy.node for copy in self.of.values())]
        nodes = {node: room for node, room in nodes_alive().items() if node not in draining}
        workers = {worker.node for worker in self.crew.workers if worker.node is not None}
        return for_copy(nodes, self.crew.shard_nodes[index], workers, held)

    async def _fill(self, index: int, shard: Any) -> None:
        """Have the shard that serves send all, if the copy has it not from there already."""
        copy = self.of.get(index)
        if copy is None or copy.where is None or copy.source is shard:
            return
        try:
            ship = shard.ship_to.options(concurrency_group=CONTROL)
            await ship.remote(copy.where, self.crew.coordinator, self.reigns[index])
        except ray.exceptions.RayActorError:
            return  # that shard died: there will be news
        if self.of.get(index) is copy:  # neither missed nor dead in the meantime
            copy.source = shard
            self.tell("info", f"shard {index} has a second copy, on node {copy.where.place.node_ip}")

    async def _watch(self, index: int, copy: Copy) -> None:
        why = "it ended"
        try:
            await copy.actor.follow.options(concurrency_group="serve").remote()
        except ray.exceptions.RayError as error:
            why = "it died" if isinstance(error, ray.exceptions.RayActorError) else str(error)
        if self.of.get(index) is copy:  # else it serves now, or was given up
            self._give_up(index, why)

    def _give_up(self, index: int, why: str) -> None:
        copy = self.of.pop(index, None)
        if copy is None:
            return
        self.lost[index] += 1
        self.tell("warning", f"shard {index} has lost its second copy: {why}")
        self.crew.copies.remove(copy.actor)
        self.end(copy)
        self.changed[index].set()

    def end(self, copy: Copy) -> None:
        """End its process, and remove what it left on its node."""
        ray.kill(copy.actor)
        if copy.where is not None:
            do_on(copy.node, _clear, copy.where.place.pid, self.crew.job_id, copy.where.folder)


def _clear(pid: int, job_id: str, folder: str) -> None:
    """End a copy by signal, in case it hears nothing else, and remove its files."""
    kill(pid)
    shutil.rmtree(where(job_id) / folder, ignore_errors=True)
