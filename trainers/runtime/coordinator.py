"""The coordinator: one async actor a run. Its methods are what workers, shards and the service call."""

import asyncio
import logging
import os
from collections.abc import Sequence
from typing import Any

import ray

from trainers.elastic.lease_table import Lease
from trainers.events import State, StopReason
from trainers.runtime.control.config import RunConfig
from trainers.runtime.control.controller import RunController
from trainers.runtime.control.launch import Launcher
from trainers.runtime.control.parts import RunParts, build_parts
from trainers.runtime.control.recovery import Recovery
from trainers.runtime.control.run_events import RequestNoted
from trainers.runtime.control.snapshots import Snapshot
from trainers.training.messages import WorkerReport
from trainers.training.position import Position


class Coordinator:
    """The Ray side of one `RunController`."""

    def __init__(self, config: RunConfig) -> None:
        context = ray.get_runtime_context()
        self.parts = self.build(config)
        self.controller = RunController(
            self.parts, Launcher(self.parts), Recovery(self.parts),
            is_successor=context.was_current_actor_reconstructed,
        )  # fmt: skip
        # The run begins by itself: the process that started this actor may die before it could call a method.
        self.running = None if config.is_trial else asyncio.get_event_loop().create_task(self._run_and_exit())

    def build(self, config: RunConfig) -> RunParts:
        """Make what the run is made of."""
        return build_parts(config, ray.get_runtime_context().current_actor, ray.util.get_node_ip_address())

    async def _run_and_exit(self) -> None:
        end = None
        try:
            end = await self.controller.run()
        except Exception:  # the log cannot be written, so whoever follows it has to see that nobody is there any more
            logging.getLogger(__name__).exception("%s ends without a word", self.parts.config.job_id)
        if end is not None and end.state is State.RECOVERING:  # the next incarnation of this actor goes on
            ray.kill(self.parts.pool.coordinator, no_restart=False)
            await asyncio.Event().wait()
        ray.actor.exit_actor()

    # -- the service ----------------------------------------------------------------------------------------------

    async def ping(self) -> str:
        """Proof of life."""
        return self.parts.config.job_id

    async def process(self) -> int:
        """The number of the process."""
        return os.getpid()

    async def cancel(self, why: StopReason | None = None) -> None:
        """Stop cleanly: at the end of a step, with a checkpoint."""
        self.controller.stop(State.CANCELLED, why)

    async def pause(self) -> None:
        """Stop in the same way; another coordinator goes on with the log when the run is resumed."""
        self.controller.stop(State.PAUSED)

    async def note(self, request: dict[str, Any]) -> None:
        """Write into the log what somebody has asked of the run."""
        self.parts.events.put_nowait(RequestNoted(request))

    async def scale(self, count: int) -> None:
        """Train with so many workers from soon on.

        Raises:
            SpecRejected: The run cannot have so many, or so few.
        """
        self.controller.scale(count)

    async def trace(self, steps: int, worker: int | None) -> int:
        """Have a worker record its next steps, by the number in its name, or the first; the number of the event that
        says so.

        Raises:
            TraceRefused: Not these steps, not this worker, or not now.
        """
        return self.parts.tracing.begin(steps, worker)

    # -- workers --------------------------------------------------------------------------------------------------

    async def report(self, report: WorkerReport) -> None:
        """A worker says what it did."""
        self.controller.report(report)

    async def lease(self, number: int, generation: int, dropped: Sequence[Lease] = ()) -> list[Lease | None]:
        """An asynchronous worker gives back the leases whose gradients it has dropped, and asks for more; None is the
        end. Nothing for a worker that asks a coordinator which has died."""
        return self.controller.lease(number, generation, dropped)

    async def take_snapshot(self, parts: list[Any], buffers: list[Any], position: Position) -> None:
        """Rank 0 of a run without shards hands over a version; answered once there is room for it."""
        await self.parts.snapshots.put(Snapshot(parts, buffers, position))

    async def taken(self, version: int) -> None:
        """A worker of a synchronous run through shards has a version that is to be kept; answered once it is."""
        await self.parts.schedule.wait_until_taken(version)

    # -- shards ---------------------------------------------------------------------------------------------------

    async def release_standby(self, index: int, incarnation: int, name: str, why: str) -> bool:
        """A shard gets no answer from its standby; whether it may go on without."""
        return await self.parts.standbys.release(index, incarnation, name, why)
