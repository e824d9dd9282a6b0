"""Synchronous SGD: every step is one step of serial SGD on the minibatches of all virtual workers together.

Sources: paper 3, section III.B (parameter servers); paper 4, sections 2 and 4 (all-reduce); paper 1, section 4.1
(every worker reduces and updates 1/K of the parameters); Chen et al. 2016 (backup workers).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from trainers.algorithms.base import Algorithm, AlgorithmConfig, Context, StepReport, Work

if TYPE_CHECKING:
    from torch import Tensor

    from trainers.optim.update import Buffers, Gradient, SliceUpdate
    from trainers.replica import Replica
    from trainers.transport.canonical import Node, Scratch
    from trainers.transport.protocols import Share

AllReduceName = Literal["auto", "ring", "halving_doubling", "binary_blocks", "three_phase", "library"]
BUCKET_BYTES = 2**20
IN_FLIGHT = 2


class SyncConfig(AlgorithmConfig):
    """Synchronous SGD. By default the result does not depend, to the bit, on how many workers share the work."""

    source: ClassVar[str] = "papers 1 (4.1), 3 (III.B) and 4 (2, 4), Chen et al. 2016"

    name: Literal["sync"] = "sync"
    """The word in a spec."""

    form: Literal["all_reduce", "parameter_server"] = "all_reduce"
    """`all_reduce`: workers exchange gradients among themselves; `parameter_server`: through the shards."""

    reduction: Literal["canonical", "fast"] = "canonical"
    """`canonical`: gradients are added in one order, whoever computes them: the same bits on any number of workers.
    `fast`: in buckets, while the backward pass goes on, in the order that is fastest: the same numbers to float
    tolerance, and the same bits on all workers of one run. Only in the form `all_reduce`."""

    all_reduce: AllReduceName | None = None
    """Fast: how the workers sum a bucket (paper 4, section 4.1). `halving_doubling` needs a power of two of workers;
    `three_phase` sums within each node, between the nodes, and broadcasts within each node; `library` is the
    transport's own way; `auto`, what null stands for, takes the fastest by transport, size and count."""

    bucket_bytes: int | None = Field(default=None, ge=1, le=2**32)
    """Fast: gradients leave as soon as so many bytes of them are complete, whole parameters at a time; null: 1 MiB."""

    in_flight: int | None = Field(default=None, ge=1, le=64)
    """Fast: buckets c that are summed at the same time; null: 2."""

    @field_validator("reduction")
    @classmethod
    def _shards_are_canonical(cls, reduction: str, info: ValidationInfo) -> str:
        if reduction == "fast" and info.data.get("form") == "parameter_server":
            raise ValueError("the shards add in the canonical order; use canonical, or set form to all_reduce")
        return reduction

    @field_validator("all_reduce", "bucket_bytes", "in_flight")
    @classmethod
    def _is_fast(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None and info.data.get("reduction") == "canonical":
            raise ValueError(
                f"the canonical reduction has no {info.field_name}; leave it out, or set reduction to fast"
            )
        return value

    backup: int = Field(default=0, ge=0, le=2047)
    """b: of `workers.count` = K + b workers the first K make a step, each with one minibatch, and the gradients of
    the others are dropped; b must be smaller than K. In the form `parameter_server`."""

    @field_validator("backup")
    @classmethod
    def _has_shards(cls, backup: int, info: ValidationInfo) -> int:
        if backup and info.data.get("form") == "all_reduce":
            raise ValueError("an all-reduce waits for everybody; use backup: 0, or form: parameter_server")
        return backup

    @property
    def uses_parameter_server(self) -> bool:
        return self.form == "parameter_server"

    @property
    def is_synchronous(self) -> bool:
        return not self.backup  # which minibatches a step trains depends on who is fast

    @property
    def num_backup(self) -> int:
        return self.backup

    def quorum(self, num_virtual: int) -> int:
        return num_virtual - self.backup

    def check_workers(self, num_workers: int) -> None:
        if self.all_reduce == "halving_doubling" and num_workers & (num_workers - 1):
            why = f"{num_workers} workers are no power of two; use binary_blocks, which serves any number, or auto"
            raise self.refused("all_reduce", why)
        if self.backup and 2 * self.backup >= num_workers:
            told = f"{num_workers} workers of which {self.backup} are backup leave K = {num_workers - self.backup}"
            works = f"use at most {(num_workers - 1) // 2}, or {2 * self.backup + 1} workers or more"
            raise self.refused("backup", f"{told}, and b must be smaller than K; {works}")

    def check_virtual(self, num_workers: int, num_virtual: int) -> None:
        if self.backup and num_virtual != num_workers:
            why = f"with backup workers each of the {num_workers} workers computes one minibatch"
            raise self.refused("backup", f"{why}; use workers.virtual: 0, or backup: 0")

    def build(self, context: Context) -> Algorithm:
        if self.backup:
            return SyncBackup(context)
        if self.uses_parameter_server:
            return SyncParameterServer(context)
        return SyncAllReduce(context) if self.reduction == "canonical" else SyncFast(self, context)


class SyncAllReduce:
    """Reduce-scatter of the gradients, update of one's own 1/K, all-gather of the parameters.

    The new version is written beside the old one, which the others may still be reading, and counts once all have
    met in the all-gather. Where the others do not see all that a worker has written, the sum is gathered instead of the
    parameters, and those who see the same memory, if only one, update all of them: so any one worker has the whole
    version, with its state.
    """

    def __init__(self, context: Context) -> None:
        from trainers.optim.update import Buffers, SliceUpdate, within
        from trainers.transport.canonical import Scratch
        from trainers.transport.protocols import Reduction

        assert context.collectives is not None
        self.context = context
        self.replica, self.collectives = context.replica, context.collectives
        start, numel = context.start, context.replica.layout.numel
        self.reduction = Reduction(context.num_virtual, self.collectives.size, numel)
        self.parts = self.collectives.parts(self.reduction)
        self.span = self.collectives.span(numel)
        self.updated = self.collectives.kept(numel)
        self.total = None if self.updated == self.span else self.collectives.replicated("total", numel)
        width, device = self.updated.stop - self.updated.start, self.parts[0].device
        exempt = within(context.exempt, self.updated)
        self.update = SliceUpdate(context.rule, context.weight_decay, width, device, exempt)
        self.scratch = Scratch(self.parts[0])
        self.versions = [
            Buffers(
                self.collectives.replicated(f"params-{i}", numel),
                {name: self.collectives.replicated(f"{name}-{i}", numel) for name in context.rule.state_names},
            )
            for i in (0, 1)
        ]
        for mine, first in zip(self.versions[0].vectors, start.whole.vectors, strict=True):
            mine[self.span] = first[self.span].to(mine.device)
            self.collectives.all_gather(mine).wait()
        self.examples, self.clock = start.examples, 0
        self.learning_rate = start.learning_rate  # of the update before

    def step(self, work: Work) -> StepReport:
        from trainers.optim.scaling import momentum_correction
        from trainers.optim.update import Contribution

        current, following = self.versions[self.clock % 2], self.versions[(self.clock + 1) % 2]
        loss, lr = 0.0, self.context.schedule(self.examples)
        for node, part in zip(self.reduction.nodes(self.collectives.rank), self.parts, strict=True):
            loss += sum_gradients(self.replica, current.params, work, node, self.scratch.under(part, node))
        total = self._gathered(self.collectives.reduce_canonical(self.reduction, self.parts).wait())
        contribution = Contribution(total, work.whole, lr, correction=momentum_correction(self.learning_rate, lr))
        self.update.apply([contribution], _part(current, self.updated), _part(following, self.updated))
        if self.total is None:
            self.collectives.all_gather(following.params).wait()
        else:
            self.collectives.complete().wait()
        self.clock += 1
        self.examples += work.whole
        self.learning_rate = lr
        return StepReport(loss, work.examples, lr)

    def whole(self) -> Buffers:
        for state in self.versions[self.clock % 2].state.values() if self.total is None else ():
            self.collectives.all_gather(state).wait()
        return self.newest()

    def newest(self, before: int = 0) -> Buffers:
        return self.versions[(self.clock - before) % 2]

    def finish(self) -> None:
        self.collectives.barrier().wait()

    def _gathered(self, mine: Gradient) -> Gradient:
        """The sum over what this worker updates, given that over its span."""
        from trainers.optim.update import Whole

        if self.total is None:
            return mine
        self.total[self.span] = mine.piece(0, self.span.stop - self.span.start)
        self.collectives.all_gather(self.total).wait()
        return Whole(self.total[self.updated])


class SyncFast:
    """Gradients are summed bucket by bucket while the backward pass goes on (paper 4, section 4).

    The buckets leave from the back, where back-propagation begins; each worker updates its share of a bucket when the
    sum over that is there, and the others get it from there. All have the same bits, because each share of a version
    is computed once and copied, or computed by all from copies of one sum.
    """

    def __init__(self, config: SyncConfig, context: Context) -> None:
        from trainers.optim.update import Buffers
        from trainers.transport.summation import build_summation, gathered

        assert context.collectives is not None
        self.context, self.replica, self.collectives = context, context.replica, context.collectives
        start, layout = context.start, context.replica.layout
        self.buckets = gathered(layout.buckets(1), config.bucket_bytes or BUCKET_BYTES)
        whole = Buffers(
            start.whole.params.to(self.replica.device),
            {name: start.whole.state[name].to(self.replica.device) for name in context.rule.state_names},
        )
        self.summation = build_summation(
            self.collectives, whole.params, config.all_reduce or "auto", config.in_flight or IN_FLIGHT
        )
        self.versions = [
            Buffers(
                self.summation.replicated(f"params-{i}", whole.params),
                {name: self.summation.replicated(f"{name}-{i}", first) for name, first in whole.state.items()},
            )
            for i in (0, 1)
        ]
        self.accrued: Tensor | None = None  # (P,) the gradient of one of several virtual workers
        self.updates: dict[tuple[int, int], SliceUpdate] = {}  # by start and stop in the vector
        self.examples, self.clock = start.examples, 0
        self.learning_rate = start.learning_rate  # of the update before

    def step(self, work: Work) -> StepReport:
        current, following = self.versions[self.clock % 2], self.versions[(self.clock + 1) % 2]
        lr = self.context.schedule(self.examples)

        def update(bucket: slice, share: Share) -> None:
            span = slice(bucket.start + share.span.start, bucket.start + share.span.stop)
            self._update(share, span, work.whole, lr)

        loss = self._gradients(
            current.params, work, lambda bucket: self.summation.begin(bucket, update, following.params)
        )
        self.summation.finish(following.params)
        self.clock += 1
        self.examples += work.whole
        self.learning_rate = lr
        return StepReport(loss, work.examples, lr)

    def whole(self) -> Buffers:
        newest = self.versions[self.clock % 2]
        for state in newest.state.values():
            self.summation.gather(state, [bucket.span for bucket in self.buckets])
        return newest

    def newest(self, before: int = 0) -> Buffers | None:
        newest = self.versions[(self.clock - before) % 2]
        return newest if self.summation.outlives or not newest.state else None

    def finish(self) -> None:
        self.collectives.barrier().wait()

    def _gradients(self, params: Tensor, work: Work, leave: Callable[[slice], None]) -> float:
        """Sum over this worker's virtual ranks; each bucket leaves while the last of them is still computing.

        Returns the sum of their losses.
        """
        from trainers.transport.summation import Departures

        part = self.summation.part
        minibatches = [(m.virtual_rank, m.batch) for m in work.minibatches if m.batch is not None]
        if not minibatches:  # the epoch ended before this worker's turn
            part.zero_()
            Departures(self.buckets, leave).rest()
            return 0.0
        *before, (last, batch) = minibatches
        into = part
        loss = 0.0
        for rank, earlier in before:
            loss += self.replica.gradient(params, earlier, into, virtual_rank=rank)
            if into is not part:
                part += into
            into = self._scratch()

        def complete(bucket: slice) -> None:
            if into is not part:
                part[bucket] += into[bucket]
            leave(bucket)

        departures = Departures(self.buckets, complete)
        return loss + self.replica.gradient(params, batch, into, virtual_rank=last, on_ready=departures.ready)

    def _scratch(self) -> Tensor:
        if self.accrued is None:
            self.accrued = self.summation.part.new_zeros(self.summation.part.shape)  # zeros: the layout's gaps stay so
        return self.accrued

    def _update(self, share: Share, span: slice, examples: int, lr: float) -> None:
        """Write this worker's share of the next version. May be called from several threads, for different spans."""
        from trainers.optim.scaling import momentum_correction
        from trainers.optim.update import Contribution, SliceUpdate, within

        current, following = self.versions[self.clock % 2], self.versions[(self.clock + 1) % 2]
        key, context = (span.start, span.stop), self.context
        if key not in self.updates:
            exempt, device = within(context.exempt, span), current.params.device
            numel = span.stop - span.start
            self.updates[key] = SliceUpdate(context.rule, context.weight_decay, numel, device, exempt)
        correction = momentum_correction(self.learning_rate, lr)
        contribution = Contribution(share.gradient, examples, lr, correction=correction)
        self.updates[key].apply([contribution], _part(current, span), _part(following, span))


class SyncParameterServer:
    """Workers push the sums of their subtrees; the shards update once all of a step's are there, and hand out the
    result. Equal to the all-reduce form bit for bit."""

    def __init__(self, context: Context) -> None:
        assert context.store is not None
        self.context, self.replica, self.store = context, context.replica, context.store
        self.scratch: Scratch | None = None
        self.examples, self.clock = context.start.examples, context.store.clock_at_start

    def step(self, work: Work) -> StepReport:
        from trainers.store.identity import PushIdentity
        from trainers.transport.canonical import Scratch, subtrees
        from trainers.transport.protocols import Push

        params = self.store.fetch(min_clock=self.clock).wait().params
        loss, lr = 0.0, self.context.schedule(self.examples)
        first, last = work.minibatches[0], work.minibatches[-1]
        step_start = first.index - first.virtual_rank
        for lo, hi in subtrees(self.context.num_virtual, first.virtual_rank, last.virtual_rank + 1):
            part = self.store.gradient_buffer()
            self.scratch = self.scratch or Scratch(part)
            loss += sum_gradients(self.replica, params, work, (lo, hi), self.scratch.under(part, (lo, hi)))
            examples = sum(len(m.batch.examples) for m in work.minibatches if m.batch and lo <= m.virtual_rank < hi)
            identity = PushIdentity(work.epoch, step_start + lo, step_start + hi - 1)
            self.store.push(Push(identity, self.clock + 1, examples, hi - lo))
        self.clock += 1
        self.examples += work.whole
        return StepReport(loss, work.examples, lr)

    def whole(self) -> None:
        return None

    def newest(self, before: int = 0) -> None:
        return None

    def finish(self) -> None:
        self.store.leave()


class SyncBackup:
    """K + b workers and K places in a step: who is among the first K pushes, the others drop what they have, fetch the
    newest version and take other examples (Chen et al. 2016, algorithms 3 and 4)."""

    def __init__(self, context: Context) -> None:
        assert context.store is not None
        self.context, self.replica, self.store = context, context.replica, context.store
        self.clock = 0  # the first step that this worker has not tried

    def step(self, work: Work) -> StepReport:
        from trainers.store.identity import PushIdentity
        from trainers.transport.protocols import Push

        (minibatch,) = work.minibatches
        assert minibatch.batch is not None
        fetched = self.store.fetch(min_clock=self.clock).wait()
        lr, self.clock = self.context.schedule(fetched.examples), fetched.updates + 1
        gradient, rank = self.store.gradient_buffer(), minibatch.virtual_rank
        before = {name: buffer.clone() for name, buffer in self.replica.float_buffers(rank).items()}
        loss = self.replica.gradient(fetched.params, minibatch.batch, gradient, virtual_rank=rank)
        if not self.store.claim(fetched.updates).wait():
            for name, buffer in self.replica.float_buffers(rank).items():
                buffer.copy_(before[name])  # what is dropped leaves no trace in the statistics either
            return StepReport(0.0, 0, lr, dropped=1)
        identity = PushIdentity(work.epoch, minibatch.index, minibatch.index)
        self.store.push(Push(identity, self.clock, work.examples))
        return StepReport(loss, work.examples, lr)

    def whole(self) -> None:
        return None

    def newest(self, before: int = 0) -> None:
        return None

    def finish(self) -> None:
        self.store.leave()


def sum_gradients(replica: Replica, params: Tensor, work: Work, node: Node, buffers: list[Tensor]) -> float:
    """Sum over the examples of the virtual ranks under `node`, in the canonical order, into `buffers[0]`.

    Returns the sum of their losses.
    """
    from trainers.transport.canonical import sum_leaves

    losses, batches = [], {m.virtual_rank: m.batch for m in work.minibatches}

    def leaf(rank: int, into: Tensor) -> None:
        batch = batches[rank]
        if batch is None:
            into.zero_()
        else:
            losses.append(replica.gradient(params, batch, into, virtual_rank=rank))

    sum_leaves(node, buffers, leaf)
    return sum(losses)


def _part(version: Buffers, span: slice) -> Buffers:
    from trainers.optim.update import Buffers

    return Buffers(version.params[span], {name: state[span] for name, state in version.state.items()})
