"""Downpour SGD: workers fetch parameters from and push gradients to the shards, each at its own pace.

Sources: paper 2, section 5.2.1; paper 3, section III.B (asynchronous mode); num_fetch, num_push and the local step
between fetches from Dean et al. 2012; max_staleness from stale synchronous parallel (Ho et al. 2013).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from trainers.algorithms.base import Algorithm, AlgorithmConfig, Context, StepReport, Work

if TYPE_CHECKING:
    from torch import Tensor


class DownpourConfig(AlgorithmConfig):
    """Asynchronous SGD through a sharded parameter server."""

    source: ClassVar[str] = "papers 2 (5.2.1) and 3 (III.B), Dean et al. 2012"

    name: Literal["downpour"] = "downpour"
    """The word in a spec."""

    num_fetch: int = Field(default=1, ge=1, le=10_000)
    """Minibatches a worker computes between two fetches; in between it steps on by itself with plain SGD."""

    num_push: int = Field(default=1, ge=1, le=10_000)
    """Minibatches whose gradients are accrued into one push."""

    max_staleness: int | None = Field(default=None, ge=0, le=1_000_000)
    """How many minibatches the slowest worker may be behind one that fetches; null: any number."""

    @field_validator("max_staleness")
    @classmethod
    def _can_progress(cls, max_staleness: int | None, info: ValidationInfo) -> int | None:
        lag = info.data.get("num_push", 1) - 1
        if max_staleness is not None and max_staleness < lag:
            raise ValueError(f"a worker that pushes every {lag + 1} minibatches waits for itself; use {lag} or more")
        return max_staleness

    @property
    def uses_parameter_server(self) -> bool:
        return True

    @property
    def is_synchronous(self) -> bool:
        return False

    def build(self, context: Context) -> Algorithm:
        return Downpour(self, context)


class Downpour:
    """The client of Dean et al. 2012, algorithm 4 of paper 2."""

    def __init__(self, config: DownpourConfig, context: Context) -> None:
        assert context.store is not None
        self.config, self.context = config, context
        self.replica, self.store = context.replica, context.store
        self.params: Tensor  # (P,) float32: as fetched, or this worker's own copy after a local step
        self.accrued: Tensor  # (P,) float32: the sum of minibatch gradients since the last push
        self.own: Tensor | None = None  # (P,) memory for the local step
        self.fresh: Tensor | None = None  # (P,) a minibatch's gradient before it is added to `accrued`
        self.pushed_to, self.pending = 0, 0  # minibatches accrued: [pushed_to, pushed_to + pending) of the epoch
        self.pending_examples = 0
        self.clock = 0

    def step(self, work: Work) -> StepReport:
        (minibatch,) = work.minibatches
        assert minibatch.batch is not None
        if self.clock % self.config.num_fetch == 0:
            fetched = self.store.fetch(min_clock=self._min_clock()).wait()
            self.params, self.lr = fetched.params, self.context.schedule(fetched.examples)
        into = self._gradient_memory(minibatch.index)
        loss = self.replica.gradient(self.params, minibatch.batch, into, scale=1 / work.examples)
        if into is not self.accrued:
            self.accrued += into
        self.clock += 1
        self.pending += 1
        self.pending_examples += work.examples
        if self.clock % self.config.num_fetch:  # the next step does not fetch
            self._local_step(into)
        if self.pending == self.config.num_push or work.ends_lease:
            self._push(work.epoch)
        return StepReport(loss, work.examples, self.lr)

    def whole(self) -> None:
        return None

    def finish(self) -> None:
        self.store.leave()

    def _min_clock(self) -> int:
        return 0 if self.config.max_staleness is None else max(0, self.clock - self.config.max_staleness)

    def _gradient_memory(self, index: int) -> Tensor:
        """The slot itself for the first minibatch of a push, so that nothing is copied where num_push is 1."""
        if self.pending == 0:
            self.accrued, self.pushed_to = self.store.gradient_buffer(), index
            return self.accrued
        if self.fresh is None:
            self.fresh = self.accrued.clone()
        return self.fresh

    def _local_step(self, gradient: Tensor) -> None:
        """params <- params - lr gradient, in memory of this worker's own (Dean et al. 2012: plain SGD, whatever the
        shards' rule is)."""
        if self.own is None:
            self.own = self.params.clone()
        self.own.copy_(self.params).sub_(gradient, alpha=self.lr)
        self.params = self.own

    def _push(self, epoch: int) -> None:
        from trainers.store.identity import PushIdentity
        from trainers.transport.protocols import Push

        identity = PushIdentity(epoch, self.pushed_to, self.pushed_to + self.pending - 1)
        self.store.push(Push(identity, self.clock, self.pending_examples, self.pending))
        self.pending, self.pending_examples = 0, 0
