"""One worker's part in the layers below the fully connected ones (paper 1, sections 4 and 4.1: data parallelism)."""

from collections.abc import Iterable

from torch import Tensor

from trainers.algorithms.base import Context, Minibatch
from trainers.models.split import Split
from trainers.optim.update import Buffers, Contribution, Gradient, SliceUpdate, within
from trainers.transport.canonical import Scratch, sum_leaves
from trainers.transport.protocols import Handle, Reduction


class Trunk:
    """Every worker has it whole, sums its gradients with the others' and updates 1/K of it.

    The new version is written beside the old one, which the others may still be reading, and counts once all have met.
    """

    def __init__(self, context: Context, split: Split) -> None:
        assert context.collectives is not None
        self.collectives, self.replica, self.module = context.collectives, context.replica, split.trunk
        whole = context.replica.layout
        in_head = {name for layer in split.head for name in layer.parameters}
        self.layout = whole.part(name for name in whole.names if name not in in_head)
        numel = self.layout.numel
        self.reduction = Reduction(context.num_virtual, self.collectives.size, numel)
        self.parts = self.collectives.parts(self.reduction)
        self.scratch = Scratch(self.parts[0])
        self.span = self.collectives.span(numel)
        exempt = within(self.layout.spans_of(whole.names_in(*context.exempt)), self.span)
        width = self.span.stop - self.span.start
        self.slice_update = SliceUpdate(context.rule, context.weight_decay, width, self.parts[0].device, exempt)
        self.versions = [
            Buffers(
                self.collectives.replicated(f"params-{i}", numel),
                {name: self.collectives.replicated(f"{name}-{i}", numel) for name in context.rule.state_names},
            )
            for i in (0, 1)
        ]
        self.named = [self.layout.named(version.params) for version in self.versions]
        self.clock = 0
        self.outputs: dict[int, Tensor] = {}  # virtual rank -> (n, activities), with the way back to the parameters
        self._begin(context.start.whole)

    @property
    def newest(self) -> Buffers:
        return self.version(0)

    def version(self, before: int) -> Buffers:
        """After the last step that all have finished, or so many (0 or 1) before it."""
        return self.versions[(self.clock - before) % 2]

    def forward(self, minibatches: Iterable[Minibatch]) -> dict[int, Tensor]:
        """The last-stage activities (n, activities) of each virtual worker that has examples."""
        self.replica.point_to(self.named[self.clock % 2])
        self.outputs = {
            m.virtual_rank: self.replica.forward(self.module, m.batch, m.virtual_rank)
            for m in minibatches
            if m.batch is not None
        }
        return {rank: outputs.detach() for rank, outputs in self.outputs.items()}

    def backward(self, gradients: dict[int, Tensor]) -> Handle[Gradient]:
        """From the gradients of the activities, shaped as these, by virtual rank, to the sum over all workers of those
        of the parameters, of this worker's span."""

        def leaf(rank: int, into: Tensor) -> None:
            outputs = self.outputs.pop(rank, None)
            if outputs is None or not outputs.requires_grad:
                into.zero_()
            else:
                self.replica.backward(outputs, gradients[rank].view_as(outputs), self.layout.named(into))

        for node, part in zip(self.reduction.nodes(self.collectives.rank), self.parts, strict=True):
            sum_leaves(node, self.scratch.under(part, node), leaf)
        return self.collectives.reduce_canonical(self.reduction, self.parts)

    def update(self, contribution: Contribution) -> None:
        """Update this worker's span, and exchange the result."""
        following = self.versions[(self.clock + 1) % 2]
        self.slice_update.apply([contribution], self._mine(self.newest), self._mine(following))
        self.collectives.all_gather(following.params).wait()
        self.clock += 1

    def complete(self) -> Buffers:
        """Parameters and state, gathered from all workers; all call it."""
        for state in self.newest.state.values():
            self.collectives.all_gather(state).wait()
        return self.newest

    def _begin(self, start: Buffers) -> None:
        for mine, first in zip(self.newest.vectors, start.vectors, strict=True):
            named = self.replica.layout.named(first)
            picked = self.layout.flatten({name: named[name] for name in self.layout.names})
            mine[self.span] = picked[self.span].to(mine.device)
            self.collectives.all_gather(mine).wait()

    def _mine(self, version: Buffers) -> Buffers:
        return Buffers(version.params[self.span], {name: s[self.span] for name, s in version.state.items()})
