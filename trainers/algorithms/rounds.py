"""The rounds of an asynchronous worker: steps that it makes by itself, and a push that covers them."""

from __future__ import annotations

from torch import Tensor

from trainers.algorithms.base import Context, Work, oldest_clock
from trainers.links.handle import Handle
from trainers.parameter_server.protocol import Fetched, Push
from trainers.parameter_server.push_identity import PushIdentity
from trainers.spans import span


class Rounds:
    """Counts the steps of a round and its examples. The worker's clock counts rounds."""

    def __init__(self, context: Context, steps: int, max_staleness: int | None) -> None:
        """steps: of a round; the end of a lease ends one, too. max_staleness: in rounds."""
        self.store, self.wire = context.store, context.wire  # a store is with the first worker of a group only
        self.steps, self.max_staleness = steps, max_staleness
        self.clock = 0 if self.store is None else self.store.clock_at_start
        self.first, self.last, self.made, self.examples = 0, 0, 0, 0  # of this round: its minibatches, steps, examples
        self.asked: Handle[Fetched] | None = None  # a fetch under way
        self.seen = 0  # examples, by which the learning rate goes: the shards' at the last fetch, and those since

    def fetch(self) -> Tensor:
        """(P,) from the shards, to be read only, until the next fetch."""
        self.ask()
        return self.take()

    def ask(self) -> None:
        """Begin to fetch."""
        assert self.store is not None
        self.asked = self.store.fetch(oldest_clock(self.clock, self.max_staleness))

    def take(self) -> Tensor:
        """What was asked for, as `fetch` has it."""
        assert self.asked is not None
        with span("fetch"):
            fetched = self.asked.wait()
        self.asked, self.seen = None, fetched.examples + self.examples
        return fetched.params

    def count(self, work: Work, examples: int) -> bool:
        """Count a step, of so many examples. Whether the round is over. One that is not pushed then goes on."""
        index = work.minibatches[0].index
        if self.made == 0:
            self.first = index
        self.last = index + work.group_minibatches - 1
        self.made += 1
        self.examples += examples
        self.seen += examples
        return self.made % self.steps == 0 or work.ends_lease

    def push(self, epoch: int, change: Tensor) -> None:
        """End the round with `change`, (P,), which the shards take for a gradient."""
        assert self.store is not None
        identity = PushIdentity(epoch, self.first, self.last)
        self.store.gradient_buffer().copy_(change)
        with span("push"):
            self.store.push(Push(identity, self.clock + 1, self.examples, self.made, wire=self.wire))
        self.end()

    def end(self) -> None:
        """Begin the next round; for who pushes none."""
        self.clock += 1
        self.made, self.examples = 0, 0

    def leave(self) -> None:
        """Push no more."""
        if self.store is not None:
            self.store.leave()
