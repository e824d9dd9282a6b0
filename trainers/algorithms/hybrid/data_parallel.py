"""Data parallelism of the layers below the fully connected ones, on one worker (paper 1, sections 4 and 4.1)."""

from collections.abc import Iterable

from torch import Tensor

from trainers.algorithms.base import Context, Minibatch
from trainers.collectives.agreement.step_norm import StepNorm
from trainers.collectives.reduction import Reduction
from trainers.collectives.reduction_tree import Scratch, sum_leaves
from trainers.links.handle import Handle
from trainers.models.split import Split
from trainers.optim.buffers import Buffers
from trainers.optim.gradient import Gradient
from trainers.optim.gradient_norm import NormLimit
from trainers.optim.update import Contribution, SliceUpdate
from trainers.spans import span


class DataParallelLayers:
    """Every worker has all of these layers, sums its gradients with the others' and updates 1/K of the parameters.

    The parameters are double-buffered: an update is written beside the current version, which other workers may still
    be reading, and becomes the current one when the all-gather that ends the step is complete.
    """

    def __init__(self, context: Context, split: Split) -> None:
        assert context.collectives is not None
        self.collectives, self.replica, self.module = context.collectives, context.replica, split.backbone
        model = context.replica.layout
        in_head = {name for layer in split.head for name in layer.parameters}
        self.layout = model.part(name for name in model.names if name not in in_head)
        numel = self.layout.numel
        self.reduction = Reduction(context.num_virtual, self.collectives.size, numel)
        self.parts = self.collectives.parts(self.reduction)
        self.scratch = Scratch(self.parts[0])
        self.span = self.collectives.span(numel)
        optimizer = context.optimizer.moved(lambda spans: self.layout.spans_of(model.names_in(*spans)))
        width = self.span.stop - self.span.start
        self.norm = StepNorm(NormLimit(context.optimizer), self.collectives, numel)
        self.slice_update = SliceUpdate(optimizer.within(self.span), width, self.parts[0].device)
        self.versions = [
            Buffers(
                self.collectives.replicated(f"params-{i}", numel),
                {name: self.collectives.replicated(f"{name}-{i}", numel) for name in context.optimizer.state_names},
            )
            for i in (0, 1)
        ]
        self.named = [self.layout.named(version.params) for version in self.versions]
        self.clock = 0
        self.outputs: dict[int, Tensor] = {}  # virtual rank -> (n, activities), attached to the autograd graph
        self._begin(context.start.buffers)

    def local_state(self, lag: int = 0) -> Buffers:
        """The version after the last step that all workers have finished, or `lag` (0 or 1) steps before it."""
        return self.versions[(self.clock - lag) % 2]

    def forward(self, minibatches: Iterable[Minibatch]) -> dict[int, Tensor]:
        """The activities (n, activities) of each virtual worker that has examples, by virtual rank."""
        self.replica.point_to(self.named[self.clock % 2])
        self.outputs = {
            m.virtual_rank: self.replica.forward(self.module, m.batch, m.virtual_rank)
            for m in minibatches
            if m.batch is not None
        }
        return {rank: outputs.detach() for rank, outputs in self.outputs.items()}

    def backward(self, gradients: dict[int, Tensor]) -> Handle[Gradient]:
        """Back-propagate the gradients of the activities, by virtual rank; each has the shape of its activities.

        Returns the sum over all workers of the gradients of the parameters, for this worker's span.
        """

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
        """Update this worker's span of the parameters, and gather those of the others."""
        following = self.versions[(self.clock + 1) % 2]
        self.slice_update.apply([contribution], self.local_state().part(self.span), following.part(self.span))
        with span("gather"):
            self.collectives.all_gather(following.params).wait()
        self.clock += 1

    def gather_state(self) -> Buffers:
        """Parameters and optimizer state, gathered from all workers. Collective: every worker calls it."""
        newest = self.local_state()
        for state in newest.state.values():
            self.collectives.all_gather(state).wait()
        return newest

    def _begin(self, start: Buffers) -> None:
        for mine, first in zip(self.local_state().vectors, start.vectors, strict=True):
            named = self.replica.layout.named(first)
            picked = self.layout.flatten({name: named[name] for name in self.layout.names})
            mine[self.span] = picked[self.span].to(mine.device)
            self.collectives.all_gather(mine).wait()
