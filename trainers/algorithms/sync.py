"""Synchronous SGD: every step is one step of serial SGD on the minibatches of all virtual workers together.

Sources: paper 3, section III.B (parameter servers); paper 4, sections 2 and 4 (all-reduce); paper 1, section 4.1
(every worker reduces and updates 1/K of the parameters).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from trainers.algorithms.base import Algorithm, AlgorithmConfig, Context, StepReport, Work

if TYPE_CHECKING:
    from torch import Tensor

    from trainers.optim.update import Buffers
    from trainers.replica import Replica
    from trainers.transport.canonical import Node, Scratch


class SyncConfig(AlgorithmConfig):
    """Synchronous SGD. The result does not depend, to the bit, on how many workers share the virtual workers."""

    source: ClassVar[str] = "papers 1 (4.1), 3 (III.B) and 4 (2, 4)"

    name: Literal["sync"] = "sync"
    """The word in a spec."""

    form: Literal["all_reduce", "parameter_server"] = "all_reduce"
    """`all_reduce`: workers exchange gradients among themselves; `parameter_server`: through the shards."""

    @property
    def uses_parameter_server(self) -> bool:
        return self.form == "parameter_server"

    @property
    def is_synchronous(self) -> bool:
        return True

    def build(self, context: Context) -> Algorithm:
        return SyncParameterServer(context) if self.uses_parameter_server else SyncAllReduce(context)


class SyncAllReduce:
    """Reduce-scatter of the gradients, update of one's own 1/K, all-gather of the parameters.

    The new version is written beside the old one, which the others may still be reading, and counts once all have
    met in the all-gather.
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
        width, device = self.span.stop - self.span.start, self.parts[0].device
        exempt = within(context.exempt, self.span)
        self.update = SliceUpdate(context.rule, context.weight_decay, width, device, exempt)
        self.scratch = Scratch(self.parts[0])
        self.versions = [
            Buffers(
                self.collectives.replicated(f"params-{i}", numel),
                {name: self.collectives.replicated(f"{name}-{i}", numel) for name in context.rule.state_names},
            )
            for i in (0, 1)
        ]
        for mine, first in zip(_vectors(self.versions[0]), _vectors(start.whole), strict=True):
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
        total = self.collectives.reduce_canonical(self.reduction, self.parts).wait()
        contribution = Contribution(total, work.whole, lr, correction=momentum_correction(self.learning_rate, lr))
        self.update.apply([contribution], self._mine(current), self._mine(following))
        self.collectives.all_gather(following.params).wait()
        self.clock += 1
        self.examples += work.whole
        self.learning_rate = lr
        return StepReport(loss, work.examples, lr)

    def whole(self) -> Buffers:
        newest = self.versions[self.clock % 2]
        for state in newest.state.values():
            self.collectives.all_gather(state).wait()
        return newest

    def finish(self) -> None:
        self.collectives.barrier().wait()

    def _mine(self, version: Buffers) -> Buffers:
        from trainers.optim.update import Buffers

        return Buffers(version.params[self.span], {name: s[self.span] for name, s in version.state.items()})


class SyncParameterServer:
    """Workers push the sums of their subtrees; the shards update once all of a step's are there, and hand out the
    result. Equal to the all-reduce form bit for bit."""

    def __init__(self, context: Context) -> None:
        assert context.store is not None
        self.context, self.replica, self.store = context, context.replica, context.store
        self.scratch: Scratch | None = None
        self.examples, self.clock = context.start.examples, 0

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


def _vectors(version: Buffers) -> list[Tensor]:
    return [version.params, *(version.state[name] for name in sorted(version.state))]
