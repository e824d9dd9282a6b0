"""The books of a run: what was trained, how far every epoch is, and where that leaves the run."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from trainers.elastic.ledger import Audit, Desk, Lease, Ledger
from trainers.elastic.order import Order
from trainers.events import EventType
from trainers.runtime.account import Account
from trainers.runtime.messages import Prepared, Tally
from trainers.spec import TrainSpec
from trainers.store.groups import parts

Tell = Callable[[EventType, dict[str, Any]], None]
Rows = Sequence[Sequence[Sequence[int]]]
"""What each shard has applied: epoch, group, first and last minibatch."""

LEASES_AT_ONCE = 2
LEASE_MINIBATCHES = 64
"""The longest lease: asking costs about a millisecond, a minibatch of a small model two."""


class Books:
    """Opened when the first teams are formed."""

    def __init__(self, spec: TrainSpec, prepared: Prepared, teams: Sequence[int], tell: Tell) -> None:
        """prepared: Where the run begins. teams: How many members each has."""
        self.spec = spec
        self.prepared = prepared
        self.tell = tell
        self.start: dict[str, Any] = dict(prepared.position)
        self.account = Account(prepared.num_examples)
        self.account.examples = self.start["examples"]
        self.epochs_told = self.start["epoch"]
        self.epoch_news = asyncio.Event()
        self.order = Order(prepared.num_examples, spec.batch.per_worker, spec.workers.num_virtual, spec.seed)
        self.desk: Desk | None = None
        """Of an asynchronous run."""
        done = already_applied(prepared, self.order, spec)
        for lease in done:
            loss, examples = self.account.by_epoch.get(lease.epoch, (0.0, 0))
            more = sum(self.order.size(i) for i in lease.minibatches)
            self.account.by_epoch[lease.epoch] = (loss, examples + more)
        if not spec.algorithm.is_synchronous:
            longest, multiple = self._lease_sizes(teams)
            self.desk = Desk(Ledger(self.order, spec.epochs, longest, done, multiple))
            self.account.examples = self.desk.ledger.trained

    # -- what workers did -----------------------------------------------------------------------------------------

    def add(self, tally: Tally) -> None:
        """Count a worker's report."""
        first = self.account.first_s is None
        self.account.add(tally)
        if self.desk is not None:
            for epoch, first_minibatch, last in tally.applied if tally.number in self.desk.team_of else ():
                self.desk.applied(tally.number, Lease(epoch, first_minibatch, last))
            self.account.examples = self.desk.ledger.trained
        if first:
            self.tell_metrics()  # the first step of all is told at once
        self.tell_epochs()

    def lease(self, number: int, dropped: Sequence[Lease], closed: bool) -> list[Lease | None]:
        """An asynchronous worker gives back what it has dropped and asks for more to do; a None is the end."""
        assert self.desk is not None
        for lease in dropped:
            self.desk.drop(number, lease)
        count = 1 if self.spec.algorithm.num_backup else LEASES_AT_ONCE
        return [self.desk.lease(number, closed) for _ in range(count)]

    def form(self, team: int, numbers: Sequence[int]) -> None:
        """These workers are an asynchronous team from now on."""
        if self.desk is not None:
            self.desk.form(team, numbers)

    def found_applied(self, team: int, rows: Rows) -> None:
        """What the shards have applied of what a team had leased counts, whether its dead could tell or not."""
        assert self.desk is not None
        ledger = self.desk.ledger
        leased = {(lease.epoch, i) for lease in ledger.open.get(team, ()) for i in lease.minibatches}
        told = replace(self.prepared, position={**self.start, "epoch": 0, "step": 0, "applied": rows})
        for lease in already_applied(told, self.order, self.spec):
            if (lease.epoch, lease.first) in leased and not ledger.is_applied(lease):
                ledger.applied(team, lease)
        self.account.examples = ledger.trained

    # -- where the run stands -------------------------------------------------------------------------------------

    def position(self) -> dict[str, Any]:
        """As far as the tallies tell; a `Position` but for what the shards applied."""
        if self.desk is not None:
            ledger = self.desk.ledger
            return {"epoch": ledger.epochs_done(), "updates": self.account.updates, "examples": ledger.trained}
        steps = self.start["epoch"] * self.prepared.steps + self.start["step"] + self.account.updates
        epoch, step = divmod(steps, self.prepared.steps)
        within = min(step * self.spec.global_batch, self.account.num_examples)
        examples = epoch * self.account.num_examples + within
        return {"epoch": epoch, "step": step, "updates": self.account.updates, "examples": examples}

    def at_end_of(self, epoch: int) -> dict[str, Any]:
        """The position of a synchronous run when `epoch` epochs are over."""
        updates = (epoch - self.start["epoch"]) * self.prepared.steps - self.start["step"]
        return {"epoch": epoch, "updates": updates, "examples": epoch * self.prepared.num_examples}

    def is_whole(self) -> bool:
        """Whether everything is trained."""
        return self.account.examples >= self.spec.epochs * self.account.num_examples

    async def told(self, epoch: int) -> None:
        """Wait until the end of an epoch is in the log."""
        while self.epochs_told < epoch:
            self.epoch_news.clear()
            await self.epoch_news.wait()

    # -- what the log says of it ----------------------------------------------------------------------------------

    def tell_metrics(self) -> None:
        """What is new since the last time, if anything."""
        metrics = self.account.metrics()
        if metrics is not None:
            self.tell("step", metrics.model_dump(mode="json"))

    def tell_epochs(self) -> None:
        """Those that are over and were not told."""
        while self.epochs_told < self.spec.epochs and self._epoch_is_done(self.epochs_told):
            self.tell("epoch", {
                "epoch": self.epochs_told + 1,
                "examples": self.account.examples,
                "train_loss": self.account.train_loss(self.epochs_told),
            })  # fmt: skip
            self.tell("epoch_audit", self._audit(self.epochs_told))
            self.epochs_told += 1
            self.epoch_news.set()

    def _epoch_is_done(self, epoch: int) -> bool:
        if self.desk is not None:
            return self.desk.ledger.epochs_done() > epoch
        return self.account.epoch_is_done(epoch)

    def _audit(self, epoch: int) -> dict[str, int]:
        """Of an epoch's examples, from what was applied. A synchronous step is applied with all its examples or not at
        all, and the version after it begins where it ends: so many steps are in it, each once."""
        audit = Audit(epoch, self.account.num_examples, 0, 0)
        if self.desk is not None:
            audit = self.desk.ledger.audit(epoch)
        found = {"trained": audit.trained, "lost": audit.lost, "duplicated": audit.duplicated}
        return {"epoch": epoch + 1, "dropped": self.account.dropped, **found}

    def _lease_sizes(self, teams: Sequence[int]) -> tuple[int, int]:
        """Of the longest, and what all are multiples of, so that no push is cut short."""
        largest, spec = max(teams), self.spec
        push: int = getattr(spec.algorithm, "num_push", 1) * largest
        longest = 1 if spec.algorithm.num_backup else LEASE_MINIBATCHES
        return max(1, min(longest * largest, self.prepared.minibatches // (2 * len(teams))) // push) * push, push


def already_applied(p: Prepared, order: Order, spec: TrainSpec) -> list[Lease]:
    """What a run has behind it: whole epochs, steps of the next one, and what every shard has applied."""
    position: dict[str, Any] = dict(p.position)
    epoch, step = position["epoch"], position["step"]
    found = [Lease(e, 0, order.minibatches - 1) for e in range(min(epoch, spec.epochs))]
    if step:
        trained = position["first"] + step * (position["virtual"] or order.num_virtual)
        found.append(Lease(epoch, 0, min(trained, order.minibatches) - 1))
    held = [parts(slice(*cut), [slice(*span) for span in p.groups]) for cut in p.shards]
    sets = [
        {(row[0], i) for row in rows if row[0] >= epoch and row[1] == group for i in range(row[2], row[3] + 1)}
        for shard, rows in enumerate(position["applied"])  # of as many shards as there were then
        for group in held[min(shard, len(held) - 1)]
    ]
    both = set.intersection(*sets) if sets and not spec.algorithm.is_synchronous else set()
    return found + [Lease(e, i, i) for e, i in sorted(both) if e < spec.epochs]
