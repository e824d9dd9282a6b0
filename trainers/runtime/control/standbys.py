"""The standbys of a run's shards, second copies on other nodes: started, watched, and replaced when they die.

A standby may serve in its shard's place only if it has everything that the shard has acknowledged. So a shard that gets
no answer from its standby must be released here (`release`) before it goes on without one; from then on the standby
counts for nothing. A shard that was taken for dead is not released.
"""

import asyncio
import itertools
import shutil
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray

from trainers.elastic.placement import for_copy
from trainers.parameter_server.endpoints import StoreEndpoint
from trainers.runtime.actor_handles import CONTROL
from trainers.runtime.actor_pool import ActorPool
from trainers.runtime.control.run_log import RunLog
from trainers.runtime.gone import GONE
from trainers.runtime.messages import Prepared, StandbyLocation
from trainers.runtime.node_folder import where
from trainers.runtime.nodes import do_on, kill_process, nodes_alive

LOOK_S = 5.0
"""Between two looks for a node, while there is none for a standby."""

PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
"""Before a lost standby is replaced: twice as long each time."""


@dataclass(eq=False)
class Standby:
    """The second copy of one shard."""

    actor: Any
    name: str
    node: str
    where: StandbyLocation | None = None
    """Known once it listens."""
    source: Any = None
    """The shard's actor that has sent it everything, and sends it what comes."""


class Standbys:
    """At most one of each shard."""

    def __init__(self, pool: ActorPool, log: RunLog) -> None:
        self.pool = pool
        self.log = log
        self.by_shard: dict[int, Standby] = {}
        self.incarnations: Counter[int] = Counter()  # by shard: how many of its processes were taken for dead
        self.opened = asyncio.Event()  # set when that is known
        self.changed: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)
        self.numbers = itertools.count(1)
        self.num_lost: Counter[int] = Counter()  # by shard: how many of its standbys were given up
        self.watching: set[asyncio.Task[None]] = set()

    def open(self, incarnations: Mapping[int, int], num_names: int) -> None:
        """Begin. If an earlier coordinator kept standbys: with the incarnations that the shards know, and with how many
        names it has used."""
        self.incarnations, self.numbers = Counter(incarnations), itertools.count(num_names + 1)
        self.opened.set()

    async def keep(self, index: int, endpoint: StoreEndpoint, prepared: Prepared, serving: list[Any]) -> None:
        """Keep a standby of this shard whenever there is a node for one, until cancelled.

        Args:
            index: The shard's.
            endpoint, prepared: As the shard was given them.
            serving: By index, the actors that serve; they change.
        """
        if self.pool.spec.ps.replicas == 1 or not endpoint.allows_standby or self.pool.is_trial:
            return  # the spec wants none; all is on one node; or a trial, whose processes are not replaced
        while True:
            self.changed[index].clear()
            try:
                if index not in self.by_shard:
                    await asyncio.sleep(self._pause_s(index))
                    await self._start(index, endpoint, prepared)
                await self._fill(index, serving[index])
            except ray.exceptions.RayError as error:
                self._give_up(index, f"it did not begin: {str(error).strip().splitlines()[-1]}")
            with suppress(TimeoutError):
                await asyncio.wait_for(self.changed[index].wait(), LOOK_S)

    async def release(self, index: int, incarnation: int, name: str, why: str) -> bool:
        """A shard gets no answer from its standby of this name. Whether it may go on without: not if the shard itself
        was taken for dead after it was given that standby."""
        await self.opened.wait()
        if incarnation != self.incarnations[index]:
            return False
        if index in self.by_shard and self.by_shard[index].name == name:
            self._give_up(index, why)
        return True

    def depose(self, index: int) -> None:
        """Take the process that serves this shard for dead."""
        self.incarnations[index] += 1

    def take(self, index: int, dead: Any) -> Standby | None:
        """The standby that is to serve in place of a dead shard, if it has everything that shard has acknowledged."""
        standby = self.by_shard.get(index)
        if standby is None or standby.source is not dead:
            return None
        return self.by_shard.pop(index)

    def serves_anew(self, index: int) -> None:
        """Another process serves this shard, and has to send its standby everything."""
        self.changed[index].set()

    def close(self) -> None:
        """Watch them no more, and report nothing."""
        for watch in self.watching:
            watch.cancel()
        self.by_shard.clear()

    def _pause_s(self, index: int) -> float:
        num_lost = self.num_lost[index]
        return min(LONGEST_PAUSE_S, PAUSE_S * 2**num_lost) if num_lost else 0.0

    async def _start(self, index: int, endpoint: StoreEndpoint, prepared: Prepared) -> None:
        node = self._node_for(index)
        if node is None:
            return
        actor, name = self.pool.start_standby(index, next(self.numbers), node)
        standby = self.by_shard[index] = Standby(actor, name, node)
        standby.where = await actor.hold.options(concurrency_group=CONTROL).remote(endpoint, prepared)
        watch = asyncio.create_task(self._watch(index, standby))
        self.watching.add(watch)
        watch.add_done_callback(self.watching.discard)

    def _node_for(self, index: int) -> str | None:
        """None if there is no node beside the shard's own that will stay."""
        draining = self.pool.draining()
        held = [*self.pool.shard_nodes, *(standby.node for standby in self.by_shard.values())]
        nodes = {node: room for node, room in nodes_alive().items() if node not in draining}
        workers = {worker.node for worker in self.pool.workers if worker.node is not None}
        return for_copy(nodes, self.pool.shard_nodes[index], workers, held)

    async def _fill(self, index: int, shard: Any) -> None:
        """Have the shard that serves send everything, unless the standby has it from that shard already."""
        standby = self.by_shard.get(index)
        if standby is None or standby.where is None or standby.source is shard:
            return
        try:
            ship = shard.replicate_to.options(concurrency_group=CONTROL)
            await ship.remote(standby.where, self.pool.coordinator, self.incarnations[index])
        except GONE:
            return  # the shard died; the process that replaces it sends everything again
        if self.by_shard.get(index) is standby:  # it was not given up in the meantime
            standby.source = shard
            self.log.line("info", f"shard {index} has a second copy, on node {standby.where.place.node_ip}")

    async def _watch(self, index: int, standby: Standby) -> None:
        why = "it ended"
        try:
            await standby.actor.follow.options(concurrency_group="serve").remote()
        except ray.exceptions.RayError as error:
            why = "it died" if isinstance(error, GONE) else str(error)
        if self.by_shard.get(index) is standby:  # otherwise it serves by now, or was given up
            self._give_up(index, why)

    def _give_up(self, index: int, why: str) -> None:
        standby = self.by_shard.pop(index, None)
        if standby is None:
            return
        self.num_lost[index] += 1
        self.log.line("warning", f"shard {index} has lost its second copy: {why}")
        self.pool.let_standby_go(standby.actor)
        if standby.where is not None:
            place = standby.where.place
            do_on(standby.node, _remove, place.pid, self.pool.job_id, standby.where.folder)
        self.changed[index].set()


def _remove(pid: int, job_id: str, folder: str) -> None:
    """Kill a standby by signal, in case it hears nothing else, and remove its files."""
    kill_process(pid)
    shutil.rmtree(where(job_id) / folder, ignore_errors=True)
