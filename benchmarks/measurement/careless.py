"""A coordinator that does without what a run needs in order to survive, to measure what that costs.

In a module of its own: Ray's processes must be able to import it, and not only the one that runs as the main module.
"""

import asyncio

from trainers.elastic.lease_table import Audit, Lease, LeaseTable
from trainers.runtime.control import run_progress
from trainers.runtime.control.config import RunConfig
from trainers.runtime.control.parts import RunParts
from trainers.runtime.coordinator import Coordinator


class Counting(LeaseTable):
    """Believes that whatever was leased is trained once."""

    def lease(self, holder: int, num_holders: int | None = None) -> Lease | None:
        return self.free.popleft() if self.has_more() else None

    def applied(self, holder: int, done: Lease) -> None:
        self.trained += sum(self.order.size(i) for i in done.minibatches)

    def epochs_done(self) -> int:
        return min(self.epochs, self.trained // self.order.num_examples)

    def audit(self, epoch: int) -> Audit:
        return Audit(epoch, self.order.num_examples, 0, 0)


class Careless(Coordinator):
    """Trains, and would not notice a death."""

    def build(self, config: RunConfig) -> RunParts:
        run_progress.LeaseTable = Counting  # type: ignore[misc]
        parts = super().build(config)
        parts.pool.watch_heartbeats = parts.pool.renew_leases = self._never  # type: ignore[method-assign]
        return parts

    async def _never(self) -> None:
        await asyncio.Event().wait()
