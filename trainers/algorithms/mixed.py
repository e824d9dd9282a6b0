"""Mixed mode: workers of a group average their gradients synchronously, groups update the shards asynchronously.

Source: paper 3, section III.B and III.C, where a group is the four GPUs of a node. num_fetch, num_push and the local
step between fetches from Dean et al. 2012; max_staleness from stale synchronous parallel (Ho et al. 2013).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from trainers.algorithms.base import Algorithm, AlgorithmConfig, Context, StepReport, Work

if TYPE_CHECKING:
    from torch import Tensor

MOST = 4096


class MixedConfig(AlgorithmConfig):
    """Synchronous SGD within groups of workers, asynchronous SGD between the groups."""

    source: ClassVar[str] = "paper 3 (III.B, III.C), Dean et al. 2012"

    name: Literal["mixed"] = "mixed"
    """The word in a spec."""

    group: int | Literal["node"] = "node"
    """Workers g of a group, which must divide `workers.count`; `node`: the workers of a node are a group."""

    num_fetch: int = Field(default=1, ge=1, le=10_000)
    """Steps of a group between two fetches; in between it steps on by itself with plain SGD."""

    num_push: int = Field(default=1, ge=1, le=10_000)
    """Steps of a group whose gradients are accrued into one push."""

    max_staleness: int | None = Field(default=None, ge=0, le=1_000_000)
    """How many steps the slowest group may be behind one that fetches; null: any number."""

    @field_validator("group", mode="before")
    @classmethod
    def _is_a_number_or_node(cls, group: Any) -> Any:
        if group != "node" and not (type(group) is int and 1 <= group <= MOST):
            raise ValueError(f"use a number of workers from 1 to {MOST}, or node")
        return group

    @field_validator("max_staleness")
    @classmethod
    def _can_progress(cls, max_staleness: int | None, info: ValidationInfo) -> int | None:
        lag = info.data.get("num_push", 1) - 1
        if max_staleness is not None and max_staleness < lag:
            raise ValueError(f"a group that pushes every {lag + 1} steps waits for itself; use {lag} or more")
        return max_staleness

    @property
    def uses_parameter_server(self) -> bool:
        return True

    @property
    def uses_collectives(self) -> bool:
        return True

    @property
    def is_synchronous(self) -> bool:
        return False

    def check_workers(self, num_workers: int) -> None:
        if self.group != "node" and num_workers % self.group:
            sizes = [str(size) for size in range(1, num_workers + 1) if num_workers % size == 0]
            words = " or ".join([", ".join(sizes[:-1]), sizes[-1]] if len(sizes) > 1 else sizes)
            why = f"{num_workers} workers cannot form groups of {self.group}; use {words}, or node"
            raise self.refused("group", why)

    def groups(self, nodes: Sequence[str]) -> list[list[int]]:
        if self.group == "node":
            return [[rank for rank, at in enumerate(nodes) if at == node] for node in dict.fromkeys(nodes)]
        return [list(range(first, first + self.group)) for first in range(0, len(nodes), self.group)]

    def build(self, context: Context) -> Algorithm:
        return Mixed(self, context)


class Mixed:
    """One worker of a group; the first of a group alone talks to the shards.

    The group's gradient is the sum over its minibatches in the canonical order, divided by the examples in them, so a
    group of g is to the shards one Downpour worker with a minibatch of gn.
    """

    def __init__(self, config: MixedConfig, context: Context) -> None:
        from trainers.transport.protocols import Reduction

        assert context.collectives is not None
        self.config, self.context, self.replica = config, context, context.replica
        self.group, self.store = context.collectives, context.store
        numel = context.replica.layout.numel
        self.reduction = Reduction(self.group.size, self.group.size, numel)
        (self.part,) = self.group.parts(self.reduction)  # (P,) the sum over this worker's minibatch
        self.mean = self.group.replicated("mean", numel)  # (P,) the group's gradient
        self.span = self.group.span(numel)
        self.params = self.part.clone()  # (P,) as fetched, or the group's own copy after a local step
        self.accrued: Tensor | None = None  # (P,) on the first worker: the gradients since the last push
        self.first, self.pending, self.pending_examples = 0, 0, 0  # of the push under way: minibatch, steps, examples
        self.clock, self.lr = 0, 0.0  # minibatches since `begun_at`, where the group's clock began
        self.begun_at = self.store.clock_at_start if self.store is not None else 0

    def step(self, work: Work) -> StepReport:
        (minibatch,) = work.minibatches
        if self.clock % self.config.num_fetch == 0:
            self._fetch()
        if minibatch.batch is None:  # the lease ends before this worker's turn
            self.part.zero_()
            loss = 0.0
        else:
            loss = self.replica.gradient(self.params, minibatch.batch, self.part, virtual_rank=minibatch.virtual_rank)
        self._average(work.whole)
        self.clock += 1
        if self.clock % self.config.num_fetch:  # the next step does not fetch
            self.params.sub_(self.mean, alpha=self.lr)
        if self.store is not None:
            self._accrue(minibatch.index, work)
        return StepReport(loss, work.examples, self.lr)

    def whole(self) -> None:
        return None

    def newest(self, before: int = 0) -> None:
        return None

    def finish(self) -> None:
        if self.store is not None:
            self.store.leave()
        self.group.barrier().wait()

    def _fetch(self) -> None:
        """The first worker fetches and tells the others the parameters, and the examples seen for the learning rate."""
        examples = 0
        if self.store is not None:
            behind = self.config.max_staleness
            min_clock = 0 if behind is None else max(0, self.begun_at + self.clock - behind)
            fetched = self.store.fetch(min_clock).wait()
            self.params.copy_(fetched.params)
            examples = fetched.examples
        self.group.broadcast(self.params, root=0).wait()
        self.lr = self.context.schedule(self.group.barrier(signal=examples).wait())

    def _average(self, examples: int) -> None:
        """mean <- sum of the parts of all workers of the group / examples."""
        total = self.group.reduce_canonical(self.reduction, [self.part]).wait()
        mine = self.mean[self.span]
        mine.copy_(total.piece(0, len(mine))).div_(examples)
        self.group.all_gather(self.mean).wait()

    def _accrue(self, index: int, work: Work) -> None:
        """Add the group's gradient to the push under way, and hand that over when it is complete."""
        from trainers.store.identity import PushIdentity
        from trainers.transport.protocols import Push

        assert self.store is not None
        if self.accrued is None:
            self.accrued, self.first = self.store.gradient_buffer(), index
            self.accrued.copy_(self.mean)
        else:
            self.accrued.add_(self.mean.to(self.accrued.device))
        self.pending += 1
        self.pending_examples += work.whole
        if self.pending == self.config.num_push or work.ends_lease:
            identity = PushIdentity(work.epoch, self.first, index + work.together - 1)
            self.store.push(Push(identity, self.begun_at + self.clock, self.pending_examples, self.pending))
            self.accrued, self.pending, self.pending_examples = None, 0, 0
