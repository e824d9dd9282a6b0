"""Downpour SGD: workers fetch parameters from and push gradients to the shards, each at its own pace.

Sources: paper 2, section 5.2.1; paper 3, section III.B (asynchronous mode); num_fetch, num_push and the local step
between fetches from Dean et al. 2012; max_staleness from stale synchronous parallel (Ho et al. 2013); the
staleness-aware rule from Zhang et al. 2016; asynchronous back-propagation from the end of paper 2's section 5.2.1,
with the delayed gradients of Huo et al. 2018.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from trainers.algorithms.base import Algorithm, AlgorithmConfig, Context, StepReport, Work
from trainers.store.identity import LONGEST_DELAY, PushIdentity

if TYPE_CHECKING:
    from torch import Tensor, nn

    from trainers.passage import Passage
    from trainers.store.layout import Layout
    from trainers.transport.protocols import Fetched, Handle


class Backprop(BaseModel):
    """Back-propagation in groups of layers that do not wait for each other's error signal."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    groups: int = Field(default=2, ge=2, le=64)
    """M: groups of neighbouring layers, with about as many layers each. The model must be a chain of so many."""

    delay: int = Field(default=1, ge=0, le=64)
    """d: a group works on the error signal that the group above it left d minibatches ago; 0: ordinary
    back-propagation, group after group."""

    @property
    def longest(self) -> int:
        """Minibatches that the first group is behind the last."""
        return (self.groups - 1) * self.delay


class DownpourConfig(AlgorithmConfig):
    """Asynchronous SGD through a sharded parameter server."""

    source: ClassVar[str] = "papers 2 (5.2.1) and 3 (III.B), Dean et al. 2012, Zhang et al. 2016, Huo et al. 2018"

    name: Literal["downpour"] = "downpour"
    """The word in a spec."""

    num_fetch: int = Field(default=1, ge=1, le=10_000)
    """Minibatches a worker computes between two fetches; in between it steps on by itself with plain SGD."""

    num_push: int = Field(default=1, ge=1, le=10_000)
    """Minibatches whose gradients are accrued into one push."""

    max_staleness: int | None = Field(default=None, ge=0, le=1_000_000)
    """How many minibatches the slowest worker may be behind one that fetches; null: any number."""

    push: Literal["whole", "layerwise"] = "whole"
    """`whole`: the gradient leaves when back-propagation is over. `layerwise`: each group of parameters leaves as soon
    as back-propagation has produced it, and is waited for when the next forward pass comes to it."""

    bucket_bytes: int = Field(default=1024**2, ge=1, le=2**40)
    """With `push: layerwise`: parameters that lie side by side form a group of at least so many bytes. With `backprop`
    the groups are that one's."""

    server_rule: Literal["plain", "staleness_aware"] = "plain"
    """`staleness_aware`: the shards divide an update's learning rate by its staleness, where that is above 1."""

    backprop: Backprop | None = None
    """Asynchronous back-propagation, with `push: layerwise`; null: every group waits for this minibatch's error."""

    @field_validator("max_staleness")
    @classmethod
    def _can_progress(cls, max_staleness: int | None, info: ValidationInfo) -> int | None:
        lag = info.data.get("num_push", 1) - 1
        if max_staleness is not None and max_staleness < lag:
            raise ValueError(f"a worker that pushes every {lag + 1} minibatches waits for itself; use {lag} or more")
        return max_staleness

    @field_validator("backprop")
    @classmethod
    def _is_defined(cls, backprop: Backprop | None, info: ValidationInfo) -> Backprop | None:
        if backprop is None:
            return None
        if info.data.get("push") == "whole":
            raise ValueError("the groups' gradients belong to different minibatches; use push: layerwise")
        if info.data.get("num_push") != 1 or info.data.get("num_fetch") != 1:
            raise ValueError("it is defined for one minibatch a push and a fetch; use num_push: 1 and num_fetch: 1")
        bound = info.data.get("max_staleness")
        if bound is not None and bound < backprop.longest:
            told = f"the first group is (groups - 1) x delay = {backprop.longest} minibatches behind"
            raise ValueError(f"{told}, so a worker waits for itself; use max_staleness: {backprop.longest} or more")
        if backprop.longest > LONGEST_DELAY:
            raise ValueError(f"(groups - 1) x delay is {backprop.longest}; use {LONGEST_DELAY} at most")
        return backprop

    @property
    def uses_parameter_server(self) -> bool:
        return True

    @property
    def is_synchronous(self) -> bool:
        return False

    @property
    def divides_by_staleness(self) -> bool:
        return self.server_rule == "staleness_aware"

    def parameter_groups(self, model: nn.Module, layout: Layout) -> tuple[slice, ...]:
        if self.push == "whole":
            return ()
        if self.backprop is not None:
            from trainers.models.chain import cut_chain

            chain = cut_chain(model, self.backprop.groups)
            return layout.runs({name: m for m, group in enumerate(chain) for name in group.names})
        return tuple(bucket.span for bucket in layout.buckets(self.bucket_bytes))

    def build(self, context: Context) -> Algorithm:
        return Downpour(self, context) if self.backprop is None else Delayed(self, self.backprop, context)


class Downpour:
    """The client of Dean et al. 2012, algorithm 4 of paper 2; to it, a vector that is pushed whole is one group."""

    def __init__(self, config: DownpourConfig, context: Context) -> None:
        assert context.store is not None
        self.config, self.context = config, context
        self.replica, self.store = context.replica, context.store
        layout = context.replica.layout
        self.spans = context.groups or (slice(0, layout.numel),)
        self.group_of = {name: g for g, span in enumerate(self.spans) for name in layout.names_in(span)}
        self.replica.on_use = self._before_use if len(self.spans) > 1 else None
        self.order = list(range(len(self.spans)))  # groups, as the last forward pass came to them
        self.coming: dict[int, Handle[Fetched]] = {}  # groups that were asked for and not yet needed
        self.params: Tensor  # (P,) float32: as fetched, or this worker's own copy after a local step
        self.accrued: Tensor  # (P,) float32: the sum of minibatch gradients since the last push
        self.own: Tensor | None = None  # (P,) memory for the local step
        self.fresh: Tensor | None = None  # (P,) a minibatch's gradient before it is added to `accrued`
        self.pushed_to, self.pending = 0, 0  # minibatches accrued: [pushed_to, pushed_to + pending) of the epoch
        self.pending_examples = 0
        self.seen: list[int] = []  # examples applied before the last fetch, of each group
        self.clock = 0  # minibatches since `begun_at`, where this worker's clock began
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
        on_ready = self._leave_by_groups(work.epoch, into, pushes)
        loss = self.replica.gradient(self.params, minibatch.batch, into, scale=1 / work.examples, on_ready=on_ready)
        self._receive(*self.coming)  # what the forward pass had no use for
        lr = self.context.schedule(min(self.seen))
        if self.clock % self.config.num_fetch:  # the next step does not fetch
            self._local_step(into, lr)
        if pushes:
            self.pending, self.pending_examples = 0, 0
        return StepReport(loss, work.examples, lr)

    def whole(self) -> None:
        return None

    def newest(self, before: int = 0) -> None:
        return None

    def finish(self) -> None:
        self.store.leave()

    def _fetch(self) -> None:
        """Ask for all groups in the order in which the forward pass needs them, and wait for the first."""
        behind = self.config.max_staleness
        min_clock = 0 if behind is None else max(0, self.begun_at + self.clock - behind)
        self.coming = {group: self.store.fetch(min_clock, group) for group in self.order}
        first, *others = self.order
        self.order, self.seen = [], []
        self._receive(first)
        if self.replica.device.type != "cpu":  # the vector is copied there in one piece
            self._receive(*others)

    def _before_use(self, name: str) -> None:
        if self.group_of[name] in self.coming:
            self._receive(self.group_of[name])

    def _receive(self, *groups: int) -> None:
        for group in groups:
            fetched = self.coming.pop(group).wait()
            self.params = fetched.params
            self.order.append(group)
            self.seen.append(fetched.examples)

    def _gradient_memory(self, index: int) -> Tensor:
        """The slot itself for the first minibatch of a push, so that nothing is copied where num_push is 1."""
        if self.pending == 0:
            self.accrued, self.pushed_to = self.store.gradient_buffer(), index
            return self.accrued
        if self.fresh is None:
            self.fresh = self.accrued.clone()
        return self.fresh

    def _leave_by_groups(self, epoch: int, gradient: Tensor, pushes: bool) -> Callable[[str], None]:
        """What is done when back-propagation has produced a parameter's gradient: once it has its whole group's, that
        is accrued, and pushed if it is time."""
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
                self._push(epoch, group)

        return on_ready

    def _local_step(self, gradient: Tensor, lr: float) -> None:
        """params <- params - lr gradient, in memory of this worker's own (Dean et al. 2012: plain SGD, whatever the
        shards' rule is)."""
        if self.own is None:
            self.own = self.params.clone()
        self.own.copy_(self.params).sub_(gradient, alpha=lr)
        self.params = self.own

    def _push(self, epoch: int, group: int) -> None:
        from trainers.transport.protocols import Push

        identity = PushIdentity(epoch, self.pushed_to, self.pushed_to + self.pending - 1, group)
        self.store.push(Push(identity, self.begun_at + self.clock, self.pending_examples, self.pending))


@dataclass(frozen=True)
class Passing:
    """A minibatch that has gone forward, and not yet backward through all groups."""

    number: int
    """s, among this worker's minibatches."""
    epoch: int
    index: int
    examples: int
    passage: Passage


class Delayed:
    """Downpour whose back-propagation is asynchronous: groups of layers work on earlier minibatches' error signals.

    The model is a chain f_M o ... o f_1 of groups with parameters w_1 ... w_M; d is the delay. In step t a worker
    fetches w^t and computes, with a_0^t = x_t,

        forward, minibatch t                  a_m^t = f_m(a_{m-1}^t; w_m^t)   for m = 1 ... M,   e_M^t = dL(a_M^t)/da_M
        group m, minibatch s = t - (M - m) d  g_m^s = e_m^s df_m/dw(a_{m-1}^s; w_m^s)
                                              e_{m-1}^s = e_m^s df_m/da(a_{m-1}^s; w_m^s)

    where e_m^s is what group m + 1 left d steps ago. So g_m^s is what back-propagation gives for minibatch s with the
    activities and the parameters w^s of its forward pass, and is pushed, named by s, (M - m) d steps later: the
    delayed gradient of Huo et al. 2018, algorithm 1, where d = 1. With d > 0 no group waits for another within a step,
    and where a worker has several threads they go side by side with the forward pass. A worker keeps (M - 1) d + 1
    minibatches' parameters and activities; when there are no more minibatches it goes on until the last has reached
    the first group. Unlike the decoupled interfaces of Jaderberg et al. 2017 nothing is predicted.
    """

    def __init__(self, config: DownpourConfig, backprop: Backprop, context: Context) -> None:
        from trainers.passage import other_threads, passages

        assert context.store is not None
        self.config, self.backprop, self.context, self.store = config, backprop, context, context.store
        self.passages = passages(context.replica, backprop.groups, backprop.longest + 1)
        self.delays = tuple((backprop.groups - 1 - m) * backprop.delay for m in range(backprop.groups))
        layout, chain = context.replica.layout, self.passages[0].groups
        inside = [layout.names_in(span) for span in context.groups]
        self.parts = [[g for g, names in enumerate(inside) if set(names) & set(layers.names)] for layers in chain]
        self.names = [[name for g in part for name in inside[g]] for part in self.parts]
        self.passing: dict[int, Passing] = {}  # by number
        self.clock = 0  # minibatches since `begun_at`, where this worker's clock began
        self.begun_at = context.store.clock_at_start
        self.fetched = -1  # number of the minibatch of the last fetch
        threads = min(other_threads(), backprop.groups - 1)
        self.others = ThreadPoolExecutor(threads) if threads and backprop.delay else None

    def step(self, work: Work) -> StepReport:
        (minibatch,) = work.minibatches
        assert minibatch.batch is not None
        t, into = self.clock, self.store.gradient_buffer()
        late = self._begin_late(t, into)
        params, examples = self._fetch()
        passage = self.passages[t % len(self.passages)]
        loss = passage.forward(params, minibatch.batch, scale=1 / work.examples)
        self.passing[t] = Passing(t, work.epoch, minibatch.index, work.examples, passage)
        for m in reversed(range(self.backprop.groups)):
            if self.delays[m] == 0:
                passage.backward(m, self.names[m], into)
                self._push(m, self.passing[t])
        self._finish_late(late)
        self.clock += 1
        return StepReport(loss, work.examples, self.context.schedule(examples), delays=self.delays)

    def whole(self) -> None:
        return None

    def newest(self, before: int = 0) -> None:
        return None

    def finish(self) -> None:
        """Take the last minibatches down to the first group."""
        for t in range(self.clock, self.clock + self.backprop.longest):
            self._finish_late(self._begin_late(t, self.store.gradient_buffer()))
        assert not self.passing
        if self.others is not None:
            self.others.shutdown()
        self.store.leave()

    def _fetch(self) -> tuple[Tensor, int]:
        """All groups; and the examples applied so far in the one that is furthest behind."""
        behind = self.config.max_staleness
        min_clock = 0 if behind is None else max(0, self.begun_at + self.clock - behind)
        handles = [self.store.fetch(min_clock, group) for group in range(len(self.context.groups))]
        found = [handle.wait() for handle in handles]
        self.fetched = self.clock
        return found[-1].params, min(fetched.examples for fetched in found)

    def _begin_late(self, t: int, into: Tensor) -> list[tuple[int, Passing, Future[None]]]:
        """The backward passes of step t that need nothing of it, begun, or made where there is one thread."""
        late = []
        for m, delay in enumerate(self.delays):
            passing = self.passing.get(t - delay) if delay else None
            if passing is not None:
                late.append((m, passing, self._run(passing.passage, m, into)))
        return late

    def _run(self, passage: Passage, m: int, into: Tensor) -> Future[None]:
        if self.others is not None:
            return self.others.submit(passage.backward, m, self.names[m], into)
        done: Future[None] = Future()
        passage.backward(m, self.names[m], into)
        done.set_result(None)
        return done

    def _finish_late(self, late: list[tuple[int, Passing, Future[None]]]) -> None:
        for m, passing, backward in reversed(late):
            backward.result()
            self._push(m, passing)

    def _push(self, m: int, of: Passing) -> None:
        from trainers.transport.protocols import Push

        for group in self.parts[m]:
            identity = PushIdentity(of.epoch, of.index, of.index, group)
            clock = self.begun_at + of.number + 1
            self.store.push(Push(identity, clock, of.examples, delay=self.fetched - of.number))
        if m == 0:
            del self.passing[of.number]
