"""Mixed mode: workers of a group average their gradients synchronously, groups update the shards asynchronously.

Source: paper 3, section III.B and III.C, where a group is the four GPUs of a node. num_fetch, num_push and the local
step between fetches from Dean et al. 2012; max_staleness from stale synchronous parallel (Ho et al. 2013).
"""

from __future__ import annotations

from torch import Tensor

from trainers.algorithms.base import Algorithm, Context, StepReport, Work, oldest_clock
from trainers.algorithms.mixed.config import MixedConfig
from trainers.algorithms.mixed.group_mean import GroupMean
from trainers.optim.gradient_norm import NormLimit
from trainers.parameter_server.protocol import Push
from trainers.parameter_server.push_identity import PushIdentity
from trainers.spans import span


class Mixed(Algorithm):
    """One worker of a group. Only the first worker of a group communicates with the shards.

    The group's gradient is the sum over its minibatches in the canonical order, divided by the examples in them. So to
    the shards a group of g workers is one Downpour worker with a minibatch of gn examples. With `compress` it sends a
    part of each push, keeps the rest, and adds it to the next; sums within the group are whole.
    """

    def __init__(self, config: MixedConfig, context: Context) -> None:
        assert context.collectives is not None
        self.config, self.context = config, context
        self.group, self.store = context.collectives, context.store
        self.sum = GroupMean(context)
        self.limit = NormLimit(context.optimizer)
        self.feedback = context.feedback() if self.store is not None else None  # of the group: who pushes keeps
        self.params = self.sum.gradient.clone()  # (P,) as fetched, or the group's own copy after a local step
        self.accrued: Tensor | None = None  # (P,) on the first worker: the gradients since the last push
        self.first, self.pending, self.pending_examples = (
            0,
            0,
            0,
        )  # of the current push: first minibatch, steps, examples
        self.clock, self.lr = 0, 0.0  # steps since `begun_at`, the clock at which the group joined
        self.begun_at = self.store.clock_at_start if self.store is not None else 0

    def step(self, work: Work) -> StepReport:
        (minibatch,) = work.minibatches
        if self.clock % self.config.num_fetch == 0:
            with span("fetch"):
                self._fetch()
        total = self.sum.compute(self.params, work)
        self.clock += 1
        if self.clock % self.config.num_fetch:  # the next step does not fetch
            with span("update"):
                self.params.sub_(self.limit.clipped(self.sum.mean), alpha=self.lr)
        if self.store is not None:
            self._accrue(minibatch.index, work)
        return StepReport(total, work.examples, self.lr, norms=self.limit.taken())

    def finish(self) -> None:
        if self.store is not None:
            self.store.leave()
        self.group.barrier().wait()

    def _fetch(self) -> None:
        """The first worker fetches the parameters and broadcasts them, with the examples seen, which set the learning
        rate."""
        examples = 0
        if self.store is not None:
            min_clock = oldest_clock(self.begun_at + self.clock, self.config.max_staleness)
            fetched = self.store.fetch(min_clock).wait()
            self.params.copy_(fetched.params)
            examples = fetched.examples
        self.group.broadcast(self.params, root=0).wait()
        self.lr = self.context.schedule(self.group.barrier(signal=examples).wait())

    def _accrue(self, index: int, work: Work) -> None:
        """Add the group's gradient to the current push, and send the push when it is complete."""
        assert self.store is not None
        if self.accrued is None:
            self.accrued, self.first = self.store.gradient_buffer(), index
            self.accrued.copy_(self.sum.mean)
        else:
            self.accrued.add_(self.sum.mean.to(self.accrued.device))
        self.pending += 1
        self.pending_examples += work.total_examples
        if self.pending == self.config.num_push or work.ends_lease:
            self.limit.shorten(self.accrued)
            identity = PushIdentity(work.epoch, self.first, index + work.group_minibatches - 1)
            numbers = self.begun_at + self.clock, self.pending_examples, self.pending
            with span("push"):
                self.store.push(Push(identity, *numbers, wire=self.context.wire, feedback=self.feedback))
            self.accrued, self.pending, self.pending_examples = None, 0, 0
