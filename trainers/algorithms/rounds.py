"""The rounds of an asynchronous worker: steps that it makes by itself, and a push that covers them."""

from __future__ import annotations

from torch import Tensor

from trainers.algorithms.base import Context, Work, oldest_clock
from trainers.parameter_server.protocol import Push
from trainers.parameter_server.push_identity import PushIdentity
from trainers.spans import span


class Rounds:
    """Counts the steps of a round and its examples. The worker's clock counts rounds."""

    def __init__(self, context: Context, steps: int, max_staleness: int | None) -> None:
        """steps: of a round; the end of a lease ends one, too. max_staleness: in rounds."""
        assert context.store is not None
        self.store, self.wire = context.store, context.wire
        self.steps, self.max_staleness = steps, max_staleness
        self.clock = context.store.clock_at_start
        self.first, self.made, self.examples = 0, 0, 0  # of this round: its first minibatch, steps, examples
        self.seen = 0  # examples, by which the learning rate goes: the shards' at the last fetch, and those since

    def fetch(self) -> Tensor:
        """(P,) from the shards, to be read only, until the next fetch."""
        with span("fetch"):
            fetched = self.store.fetch(oldest_clock(self.clock, self.max_staleness)).wait()
        self.seen = fetched.examples + self.examples
        return fetched.params

    def count(self, work: Work) -> bool:
        """Count a step. Whether the round is over, and is to be pushed."""
        if self.made == 0:
            self.first = work.minibatches[0].index
        self.made += 1
        self.examples += work.examples
        self.seen += work.examples
        return self.made == self.steps or work.ends_lease

    def push(self, epoch: int, change: Tensor) -> None:
        """End the round with `change`, (P,), which the shards take for a gradient."""
        self.clock += 1
        identity = PushIdentity(epoch, self.first, self.first + self.made - 1)
        self.store.gradient_buffer().copy_(change)
        with span("push"):
            self.store.push(Push(identity, self.clock, self.examples, self.made, wire=self.wire))
        self.made, self.examples = 0, 0
