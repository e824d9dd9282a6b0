"""The gradient of a group of workers that step together."""

from __future__ import annotations

from torch import Tensor

from trainers.algorithms.base import Context, Work
from trainers.collectives.agreement.step_weight import StepWeight
from trainers.collectives.reduction import Reduction
from trainers.collectives.reduction_tree import Scratch
from trainers.models.objective import Total
from trainers.spans import span


class GroupMean:
    """The sum over the group's minibatches in the canonical order, divided by the examples in them."""

    def __init__(self, context: Context) -> None:
        assert context.collectives is not None
        self.replica, self.group = context.replica, context.collectives
        numel = self.replica.layout.numel
        self.reduction = Reduction(self.group.size, self.group.size, numel, context.wire)
        (self.part,) = self.group.parts(self.reduction)  # (P,) the sum over this worker's minibatch, as it travels
        self.gradient, *_ = Scratch(self.part).under(self.part, (0, 1))  # (P,) the same as it is computed
        self.mean = self.group.replicated("mean", numel)  # (P,) valid from `compute` to the next one
        self.span = self.group.span(numel)
        self.weight = StepWeight(self.replica.weight_per_example, self.group, self.group.size, self.part.device)

    def compute(self, params: Tensor, work: Work) -> Total:
        """Leave in `mean` the gradient of a step at these parameters (P,), the same for all. Returns the summed loss
        of this worker's minibatch. Collective."""
        (minibatch,) = work.minibatches
        if minibatch.batch is None:  # the lease has no examples left for this worker
            self.gradient.zero_()
            total = Total()
        else:
            rank = minibatch.virtual_rank
            total = self.replica.gradient(params, minibatch.batch, self.gradient, virtual_rank=rank)
        weight = self.weight.of(work.total_examples, [total.weight])
        with span("sums"):
            if self.gradient is not self.part:
                self.part.copy_(self.gradient)  # rounded
            self._average(weight)
        return total

    def _average(self, weight: float) -> None:
        """mean <- sum of the parts of all workers of the group / weight."""
        total = self.group.reduce_canonical(self.reduction, [self.part]).wait()
        mine = self.mean[self.span]
        mine.copy_(total.piece(0, len(mine))).div_(weight or 1.0)
        self.group.all_gather(self.mean).wait()
