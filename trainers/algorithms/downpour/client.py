"""Downpour SGD: workers fetch parameters from and push gradients to the shards, each at its own pace.

Sources: paper 2, section 5.2.1; paper 3, section III.B (asynchronous mode); num_fetch, num_push and the local step
between fetches from Dean et al. 2012; max_staleness from stale synchronous parallel (Ho et al. 2013); the
staleness-aware rule from Zhang et al. 2016; asynchronous back-propagation from the end of paper 2's section 5.2.1,
with the delayed gradients of Huo et al. 2018.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from torch import Tensor

from trainers.algorithms.base import Algorithm, Context, StepReport, Work, oldest_clock
from trainers.algorithms.downpour.config import DownpourConfig
from trainers.links.handle import Handle
from trainers.optim.gradient_norm import NormLimit
from trainers.parameter_server.protocol import Fetched, Push
from trainers.parameter_server.push_identity import PushIdentity
from trainers.spans import span


class Downpour(Algorithm):
    """The client of Dean et al. 2012, algorithm 4 of paper 2. A vector pushed in one piece is a single group."""

    def __init__(self, config: DownpourConfig, context: Context) -> None:
        assert context.store is not None
        self.config, self.context = config, context
        self.replica, self.store = context.replica, context.store
        layout = context.replica.layout
        self.limit = NormLimit(context.optimizer)
        self.feedback = context.feedback()
        self.spans = context.groups or (slice(0, layout.numel),)
        self.group_of = {name: g for g, span in enumerate(self.spans) for name in layout.names_in(span)}
        self.replica.on_use = self._before_use if len(self.spans) > 1 else None
        self.order = list(range(len(self.spans)))  # groups, in the order in which the last forward pass used them
        self.fetching: dict[int, Handle[Fetched]] = {}  # groups that were requested and have not been used yet
        self.params: Tensor  # (P,) float32: as fetched, or this worker's own copy after a local step
        self.accrued: Tensor  # (P,) float32: the sum of minibatch gradients since the last push
        self.stepped: Tensor | None = None  # (P,) memory for the parameters after a local step
        self.fresh: Tensor | None = None  # (P,) a minibatch's gradient before it is added to `accrued`
        self.pushed_to, self.pending = 0, 0  # minibatches accrued: [pushed_to, pushed_to + pending) of the epoch
        self.pending_examples = 0
        self.seen: list[int] = []  # of each group: examples applied before the last fetch
        self.clock = 0  # minibatches since `begun_at`, the clock at which this worker joined
        self.begun_at = context.store.clock_at_start

    def step(self, work: Work) -> StepReport:
        (minibatch,) = work.minibatches
        assert minibatch.batch is not None
        if self.clock % self.config.num_fetch == 0:
            self._fetch()
        into = self._gradient_memory(minibatch.index)
        self.clock += 1
        self.pending += 1
        self.pending_examples += work.examples
        pushes = self.pending == self.config.num_push or work.ends_lease
        on_ready = self._push_by_groups(work.epoch, into, pushes)
        total = self.replica.gradient(self.params, minibatch.batch, into, mean=True, on_ready=on_ready)
        self._receive(*self.fetching)  # groups that the forward pass did not use
        lr = self.context.schedule(min(self.seen))
        if self.clock % self.config.num_fetch:  # the next step does not fetch
            self._local_step(self.limit.clipped(into), lr)
        if pushes:
            self.pending, self.pending_examples = 0, 0
        return StepReport(total, work.examples, lr, norms=self.limit.taken())

    def finish(self) -> None:
        self.store.leave()

    def _fetch(self) -> None:
        """Request all groups in the order in which the forward pass needs them, and wait for the first."""
        min_clock = oldest_clock(self.begun_at + self.clock, self.config.max_staleness)
        self.fetching = {group: self.store.fetch(min_clock, group) for group in self.order}
        first, *others = self.order
        self.order, self.seen = [], []
        self._receive(first)
        if self.replica.device.type != "cpu":  # the vector is copied to the device in one piece
            self._receive(*others)

    def _before_use(self, name: str) -> None:
        if self.group_of[name] in self.fetching:
            self._receive(self.group_of[name])

    def _receive(self, *groups: int) -> None:
        for group in groups:
            with span("fetch"):
                fetched = self.fetching.pop(group).wait()
            self.params = fetched.params
            self.order.append(group)
            self.seen.append(fetched.examples)

    def _gradient_memory(self, index: int) -> Tensor:
        """Memory for a minibatch's gradient. For the first one of a push it is the slot itself, which saves a copy,
        unless a local step follows and the slot has only what travels."""
        if self.pending == 0:
            self.accrued, self.pushed_to = self.store.gradient_buffer(), index
            if self.feedback is None or self.config.num_fetch == 1:
                return self.accrued
            self.accrued.zero_()
        if self.fresh is None:
            self.fresh = self.accrued.clone()
        return self.fresh

    def _push_by_groups(self, epoch: int, gradient: Tensor, pushes: bool) -> Callable[[str], None]:
        """A callback for the backward pass, called with each parameter whose gradient is ready.

        Once all gradients of a group are ready they are added to those accrued, and if `pushes`, the group is pushed.
        """
        missing = Counter(self.group_of.values())

        def on_ready(name: str) -> None:
            group = self.group_of[name]
            missing[group] -= 1
            if missing[group]:
                return
            span = self.spans[group]
            if gradient is not self.accrued:
                self.accrued[span] += gradient[span]
            if pushes:
                self.limit.shorten(self.accrued)  # with a limit of the norm there is one group
                self._push(epoch, group)

        return on_ready

    def _local_step(self, gradient: Tensor, lr: float) -> None:
        """params <- params - lr gradient, in this worker's own memory (Dean et al. 2012: plain SGD, whatever rule the
        shards use)."""
        with span("update"):
            if self.stepped is None:
                self.stepped = self.params.clone()
            self.stepped.copy_(self.params).sub_(gradient, alpha=lr)
        self.params = self.stepped

    def _push(self, epoch: int, group: int) -> None:
        identity = PushIdentity(epoch, self.pushed_to, self.pushed_to + self.pending - 1, group)
        numbers = self.begun_at + self.clock, self.pending_examples, self.pending
        with span("push"):
            self.store.push(Push(identity, *numbers, wire=self.context.wire, feedback=self.feedback))
