"""Synchronous SGD in which each virtual worker sends a part of its gradient, and adds the rest to its next one.

Sources: Seide et al. 2014, Stich et al. 2018, Karimireddy et al. 2019 (error feedback); see `trainers.optim.compress`.
"""

from __future__ import annotations

import torch

from trainers.algorithms.base import Algorithm, Context, StepReport, Work
from trainers.collectives.agreement.step_weight import StepWeight
from trainers.models.objective import Total
from trainers.optim.buffers import Buffers
from trainers.optim.gradient import TensorGradient
from trainers.optim.gradient_norm import NormLimit
from trainers.optim.scaling import momentum_correction
from trainers.optim.update import Contribution, SliceUpdate
from trainers.spans import span


class SyncCompressed(Algorithm):
    """With g_k the gradient of virtual worker k as a share of the mean over the step, and e_k what it has kept:

    p_k <- g_k + e_k;  C(p_k) is sent;  e_k <- p_k - C(p_k);  the optimizer takes the sum over k of C(p_k)

    Every worker has all parameters and makes the whole update. What a virtual worker has kept is nowhere but on its
    own worker, and in the snapshots.
    """

    def __init__(self, context: Context) -> None:
        assert context.collectives is not None
        self.context, self.replica, self.collectives = context, context.replica, context.collectives
        start, device = context.start, self.collectives.device
        summed = context.compressed_sum()
        assert summed is not None
        self.sum = summed
        self.gradients = torch.zeros_like(summed.kept)  # (virtual workers here, P)
        self.version = Buffers(
            start.buffers.params.to(device, copy=True),
            {name: start.buffers.state[name].to(device, copy=True) for name in context.optimizer.state_names},
        )
        self.weight = StepWeight(self.replica.weight_per_example, self.collectives, context.num_virtual, device)
        self.limit = NormLimit(context.optimizer)
        self.update = SliceUpdate(context.optimizer, context.replica.layout.numel, device)
        self.examples, self.learning_rate = start.examples, start.learning_rate

    def step(self, work: Work) -> StepReport:
        lr, totals = self.context.schedule(self.examples), []
        for minibatch, gradient in zip(work.minibatches, self.gradients, strict=True):
            if minibatch.batch is None:
                gradient.zero_()
                totals.append(Total())
            else:
                rank = minibatch.virtual_rank
                totals.append(self.replica.gradient(self.version.params, minibatch.batch, gradient, virtual_rank=rank))
        self.gradients.div_(self.weight.of(work.total_examples, [total.weight for total in totals]))
        summed = self.sum.of(self.gradients)
        correction = momentum_correction(self.learning_rate, lr)
        gradient, scale = TensorGradient(summed), self.limit.of(summed)
        contribution = Contribution(gradient, 1, lr, correction=correction, seen=self.examples, scale=scale)
        with span("update"):
            self.update.apply([contribution], self.version, self.version)
        self.examples += work.total_examples
        self.learning_rate = lr
        return StepReport(sum(totals, Total()), work.examples, lr, norms=self.limit.taken())

    def gather_state(self) -> Buffers:
        """Parameters and optimizer state; on worker 0 also what each virtual worker has kept."""
        return Buffers(self.version.params, self.version.state | self.sum.gather())

    def finish(self) -> None:
        self.collectives.barrier().wait()
