"""A coordinator that does without what a run needs in order to survive, to measure what that costs.

In a module of its own: Ray's processes must be able to import it, and not only the one that runs as the main module.
"""

import asyncio

from trainers.elastic.ledger import Audit, Lease, Ledger
from trainers.runtime.coordinator import Coordinator


class Counting(Ledger):
    """Believes that whatever was leased is trained once."""

    def lease(self, worker: int) -> Lease | None:
        return self.free.popleft() if self.free else None

    def applied(self, worker: int, done: Lease) -> None:
        self.trained += sum(self.order.size(i) for i in done.minibatches)

    def epochs_done(self) -> int:
        return min(self.epochs, self.trained // self.order.num_examples)

    def audit(self, epoch: int) -> Audit:
        return Audit(epoch, self.order.num_examples, 0, 0)


class Careless(Coordinator):
    """Trains, and would not notice a death."""

    def _open_books(self) -> None:
        self.crew.watch = self.crew.renew = self._never  # type: ignore[method-assign]
        super()._open_books()
        assert self.books.desk is not None
        self.books.desk.ledger.__class__ = Counting

    async def _start(self) -> None:
        self.crew.watch = self.crew.renew = self._never  # type: ignore[method-assign]
        await super()._start()

    async def _never(self) -> None:
        await asyncio.Event().wait()
