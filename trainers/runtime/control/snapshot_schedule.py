"""Takes snapshots of a run while it trains: at the ends of epochs, every so many seconds, and at the very end."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import ray

from trainers.errors import Stopped
from trainers.runtime.actor_pool import ActorPool
from trainers.runtime.control.run_progress import RunProgress
from trainers.runtime.control.shard_group import ShardGroup
from trainers.runtime.control.snapshots import Snapshot, Snapshots
from trainers.runtime.control.worker_group import WorkerGroup
from trainers.training.position import Position


class SnapshotSchedule:
    """Where there are shards, snapshots are taken from them; otherwise workers hand them over by themselves."""

    def __init__(self, pool: ActorPool, shards: ShardGroup, snapshots: Snapshots) -> None:
        self.pool = pool
        self.shards = shards
        self.snapshots = snapshots
        self.taken_until = 0  # the newest version that was taken from the shards
        self.taken = asyncio.Condition()
        self.is_closed = False
        self.is_taking = False  # because somebody asked for it

    def close(self) -> None:
        """Take no more snapshots by the clock."""
        self.is_closed = True

    async def wait_until_taken(self, version: int) -> None:
        """Wait until this version has been taken from the shards; a worker must not make the next one before."""
        async with self.taken:
            await self.taken.wait_for(lambda: self.taken_until >= version)

    # -- through shards -------------------------------------------------------------------------------------------

    async def follow(self, progress: RunProgress) -> None:
        """Take the versions from the shards that the spec asks for by epochs and steps; the last one aside."""
        every = progress.spec.evaluate.every_steps
        if not progress.leases:
            await self._follow_steps(progress)
        elif every:
            await asyncio.gather(self._follow_epochs(progress), self._follow_updates(progress, every))
        else:
            await self._follow_epochs(progress)

    async def _follow_epochs(self, progress: RunProgress) -> None:
        """Of an asynchronous run, at the ends of epochs."""
        begin = max(progress.start.epoch, progress.epochs_logged)
        for epoch in range(begin + 1, progress.extent.epochs + (progress.extent.minibatches > 0)):
            if not self.snapshots.is_due(Position(epoch)):
                continue
            await progress.wait_until_logged(epoch)
            if progress.position().examples >= progress.extent.examples:
                return  # the version now is the last one
            if progress.epochs_logged > epoch and self.snapshots.is_due(Position(progress.epochs_logged)):
                continue  # the workers are further already; that version is taken in its turn
            await self.snapshots.put(await self._from_shards(0, progress.position()))

    async def _follow_updates(self, progress: RunProgress, every: int) -> None:
        """Take a snapshot of an asynchronous run each time that the workers have reported so many more updates."""
        while not self.is_closed:
            await progress.wait_until_reported((progress.metrics.updates // every + 1) * every)
            await self._take_in_passing(progress)

    async def _follow_steps(self, progress: RunProgress) -> None:
        """Likewise of a synchronous run, at exact steps."""
        length, every = progress.prepared.steps, progress.spec.evaluate.every_steps
        logged = progress.epochs_logged * length - progress.first_step
        taken = max(0, logged, progress.metrics.updates - 1)  # the newest may not have been taken
        await self._has_taken(taken)
        step = progress.first_step + taken
        last = progress.extent.epochs * length + progress.extent.minibatches // progress.order.num_virtual
        while step < last:
            end = (step // length + 1) * length
            step = min(end, (step // every + 1) * every) if every else end
            position = progress.after(step)
            if step < last and self.snapshots.is_due(position):
                await self._take(position)

    async def _take(self, position: Position) -> None:
        """Take a version of a synchronous run, whose workers wait until it is taken."""
        snapshot = await self._from_shards(position.updates, position)
        refs = snapshot.buffers
        await asyncio.to_thread(ray.wait, refs, num_returns=len(refs), fetch_local=False)
        await self.snapshots.put(snapshot)
        await self._has_taken(position.updates)

    async def follow_clock(self, progress: RunProgress, seconds: float) -> None:
        """Take a snapshot from the shards every so many seconds."""
        while not self.is_closed:
            await asyncio.sleep(seconds)
            if not self.snapshots.is_busy:
                await self._take_in_passing(progress)

    async def _has_taken(self, version: int) -> None:
        async with self.taken:
            self.taken_until = version
            self.taken.notify_all()

    async def _from_shards(self, version: int, position: Position) -> Snapshot:
        """Every shard's slice as soon as it has made so many updates, and every worker's buffers."""
        parts = await self.shards.snapshot(version)
        ready = [worker for worker in self.pool.workers if worker.prepared is not None]
        return Snapshot(parts, [worker.ask("buffers") for worker in ready], position)

    async def take_now(self, progress: RunProgress, groups: Sequence[WorkerGroup]) -> None:
        """Take a snapshot because somebody asked for it, unless another is still being taken or looked at."""
        if self.is_closed or self.is_taking or self.snapshots.is_busy:
            return
        self.is_taking = True
        try:
            if self.pool.shards:
                await self._take_in_passing(progress)
            else:
                await asyncio.gather(*[group.meet() for group in groups])
        finally:
            self.is_taking = False

    async def _take_in_passing(self, progress: RunProgress) -> None:
        snapshot = await self._from_shards(0, progress.position())
        await self.snapshots.put(replace(snapshot, is_passing=True))

    # -- without shards -------------------------------------------------------------------------------------------

    async def meet_by_clock(self, groups: Sequence[WorkerGroup], seconds: float) -> None:
        """Have the workers meet for a snapshot every so many seconds."""
        while not self.is_closed:
            await asyncio.sleep(seconds)
            await asyncio.gather(*[group.meet() for group in groups])

    # -- at the very end ------------------------------------------------------------------------------------------

    async def last(self, progress: RunProgress, groups: Sequence[WorkerGroup]) -> Snapshot:
        """The version with which the training has ended.

        Raises:
            Stopped: The run was told to stop, and nobody has that version any more.
        """
        if self.pool.shards:
            return replace(await self._from_shards(0, progress.position()), is_last=True)
        (group,) = groups
        latest = group.latest
        if latest is None and group.is_stopping:
            raise Stopped("with its last checkpoint: no worker has the newest version any more")
        assert latest is not None
        holder = next(worker for worker in self.pool.workers if worker.number == latest.number)
        parts, buffers = await holder.ask("hand_over")
        return Snapshot(parts, buffers, latest.position, is_last=True)
