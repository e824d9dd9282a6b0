"""Synchronous SGD through the shards (paper 3, section III.B)."""

from __future__ import annotations

from trainers.algorithms.base import Algorithm, Context, StepReport, Work
from trainers.algorithms.gradients import sum_gradients
from trainers.collectives.reduction_tree import Scratch, subtrees
from trainers.models.objective import Total
from trainers.parameter_server.protocol import Push
from trainers.parameter_server.push_identity import PushIdentity
from trainers.spans import span


class SyncParameterServer(Algorithm):
    """Workers push the sums of their subtrees; the shards update once all pushes of a step have arrived.

    Gives the same bits as the all-reduce form.
    """

    def __init__(self, context: Context) -> None:
        assert context.store is not None
        self.context, self.replica, self.store = context, context.replica, context.store
        self.scratch: Scratch | None = None
        self.examples, self.clock = context.start.examples, context.store.clock_at_start

    def step(self, work: Work) -> StepReport:
        with span("fetch"):
            params = self.store.fetch(min_clock=self.clock).wait().params
        lr, totals = self.context.schedule(self.examples), []
        first, last = work.minibatches[0], work.minibatches[-1]
        step_start = first.index - first.virtual_rank
        for lo, hi in subtrees(self.context.num_virtual, first.virtual_rank, last.virtual_rank + 1):
            part = self.store.gradient_buffer()
            self.scratch = self.scratch or Scratch(part)
            buffers = self.scratch.under(part, (lo, hi))
            total = sum(sum_gradients(self.replica, params, work, (lo, hi), buffers, self.context.wire), Total())
            totals.append(total)
            examples = sum(m.batch.num_used for m in work.minibatches if m.batch and lo <= m.virtual_rank < hi)
            identity = PushIdentity(work.epoch, step_start + lo, step_start + hi - 1)
            wire = self.context.wire if hi - lo == 1 else "float32"  # the sum of several is no bfloat16
            push = Push(identity, self.clock + 1, examples, hi - lo, weight=total.weight, wire=wire)
            with span("push"):
                self.store.push(push)
        self.clock += 1
        self.examples += work.total_examples
        return StepReport(sum(totals, Total()), work.examples, lr)

    def finish(self) -> None:
        self.store.leave()
