"""Synchronous SGD with backup workers (Chen et al. 2016)."""

from __future__ import annotations

from trainers.algorithms.base import Algorithm, Context, StepReport, Work
from trainers.models.objective import Total
from trainers.parameter_server.protocol import Push
from trainers.parameter_server.push_identity import PushIdentity
from trainers.spans import span


class SyncBackup(Algorithm):
    """K + b workers, of which the first K to finish make a step (Chen et al. 2016, algorithms 3 and 4).

    The other b workers drop their gradients, fetch the newest parameters and go on with other examples.
    """

    def __init__(self, context: Context) -> None:
        assert context.store is not None
        self.context, self.replica, self.store = context, context.replica, context.store
        self.clock = 0  # the first step in which this worker has not taken part

    def step(self, work: Work) -> StepReport:
        (minibatch,) = work.minibatches
        assert minibatch.batch is not None
        with span("fetch"):
            fetched = self.store.fetch(min_clock=self.clock).wait()
        lr, self.clock = self.context.schedule(fetched.examples), fetched.updates + 1
        gradient, rank = self.store.gradient_buffer(), minibatch.virtual_rank
        before = {name: buffer.clone() for name, buffer in self.replica.buffers_of(rank).items()}
        total = self.replica.gradient(fetched.params, minibatch.batch, gradient, virtual_rank=rank)
        with span("claim"):
            is_in_time = self.store.claim(fetched.updates).wait()
        if not is_in_time:
            for name, buffer in self.replica.buffers_of(rank).items():
                buffer.copy_(before[name])  # a dropped minibatch must leave no trace in them
            return StepReport(Total(), 0, lr, dropped=1)
        identity = PushIdentity(work.epoch, minibatch.index, minibatch.index)
        push = Push(identity, self.clock, work.examples, weight=total.weight, wire=self.context.wire)
        with span("push"):
            self.store.push(push)
        return StepReport(total, work.examples, lr)

    def finish(self) -> None:
        self.store.leave()
