"""Synchronous SGD: every step is one step of serial SGD on the minibatches of all virtual workers together.

Sources: paper 4, sections 2 and 4 (all-reduce); paper 1, section 4.1 (every worker reduces and updates 1/K of the
parameters).
"""

from __future__ import annotations

import math

from torch import Tensor

from trainers.algorithms.base import Algorithm, Context, StepReport, Work
from trainers.algorithms.gradients import sum_gradients
from trainers.collectives.agreement.step_noise import StepNoise
from trainers.collectives.agreement.step_norm import StepNorm
from trainers.collectives.agreement.step_weight import StepWeight
from trainers.collectives.beside.ordered_buckets import OrderedBuckets
from trainers.collectives.reduction import Reduction
from trainers.collectives.reduction_tree import Node, Scratch
from trainers.models.objective import Total
from trainers.optim.buffers import Buffers
from trainers.optim.gradient import Gradient, TensorGradient
from trainers.optim.gradient_norm import NormLimit
from trainers.optim.noise_scale import NoiseEstimate
from trainers.optim.scaling import momentum_correction
from trainers.optim.update import Contribution, SliceUpdate
from trainers.spans import span


class AllReduce(Algorithm):
    """Reduce-scatter of the gradients, update of this worker's 1/K of the parameters, all-gather of the parameters.

    The parameters are double-buffered: an update is written beside the current version, which other workers may still
    be reading, and becomes the current one when the all-gather that ends the step is complete. Where the workers do not
    share one memory, the summed gradient is gathered instead of the parameters, and each worker, or all workers of a
    node together, update all parameters. So any one worker has all parameters and the optimizer state.
    """

    def __init__(self, context: Context, measures_noise: bool = False, leaves: int | None = None) -> None:
        """leaves: Gradients that are added; None: one of each virtual worker."""
        assert context.collectives is not None
        self.context = context
        self.replica, self.collectives = context.replica, context.collectives
        start, numel = context.start, context.replica.layout.numel
        if context.optimizer.parameters:
            self.collectives.cut_at([*(parameter.start for parameter in context.optimizer.parameters), numel])
        self.reduction = Reduction(leaves or context.num_virtual, self.collectives.size, numel, context.wire)
        self.parts = self.collectives.parts(self.reduction)
        self.span = self.collectives.span(numel)
        self.updated = self.collectives.persistent_span(numel)
        self.total = None if self.updated == self.span else self.collectives.replicated("total", numel)
        self.early = None
        if self.total is not None and self.collectives.sums_beside and leaves is None and not measures_noise:
            parameters = context.replica.layout.buckets(1)
            self.early = OrderedBuckets(self.collectives, self.reduction, self.parts, self.total, parameters)
        width, device = self.updated.stop - self.updated.start, self.parts[0].device
        self.weight = StepWeight(self.replica.weight_per_example, self.collectives, context.num_virtual, device)
        self.scales = self.replica.precision == "float16"
        knows = self.scales or measures_noise
        self.norm = StepNorm(NormLimit(context.optimizer, knows=knows), self.collectives, numel)
        self.noise = None
        if measures_noise:
            self.noise = StepNoise(self.collectives, context.num_virtual, context.optimizer.block, device)
        self.update = SliceUpdate(context.optimizer.within(self.updated), width, device)
        self.scratch = Scratch(self.parts[0])
        self.versions = [
            Buffers(
                self.collectives.replicated(f"params-{i}", numel),
                {name: self.collectives.replicated(f"{name}-{i}", numel) for name in context.optimizer.state_names},
            )
            for i in (0, 1)
        ]
        for vector, first in zip(self.versions[0].vectors, start.buffers.vectors, strict=True):
            vector[self.span] = first[self.span].to(vector.device)
            self.collectives.all_gather(vector).wait()
        self.slices = [version.part(self.updated) for version in self.versions]
        self.examples, self.clock = start.examples, 0
        self.learning_rate = start.learning_rate  # of the last update
        self.loss_scale = start.loss_scale

    def step(self, work: Work) -> StepReport:
        current, following = self.versions[self.clock % 2], self.versions[(self.clock + 1) % 2]
        lr = self.context.schedule(self.examples)
        factor = self.replica.loss_scale = self.loss_scale.factor if self.scales else 1.0
        totals = self._lay_down(current.params, work)
        weight = self.weight.of(work.total_examples, [total.weight for total in totals])
        divisor = factor * weight
        with span("sums"):
            summed = self._summed()
        own, scale = self.norm.of(summed, divisor)
        noise = self._noise(work, totals, factor)
        gradient, correction = self._gather(own), momentum_correction(self.learning_rate, lr)
        contribution = Contribution(gradient, divisor, lr, correction=correction, seen=self.examples, scale=scale)
        now, then = self.slices[self.clock % 2], self.slices[(self.clock + 1) % 2]
        norms = self._update(contribution, now, then)
        with span("gather"):
            if self.total is None:
                self.collectives.all_gather(following.params).wait()
            else:
                self.collectives.complete().wait()
        self.clock += 1
        self.examples += work.total_examples
        total = sum(totals, Total())
        return StepReport(
            total, work.examples, self.learning_rate, norms=norms, loss_scale=self.loss_scale, noise=noise
        )

    def _noise(self, work: Work, totals: list[Total], factor: float) -> NoiseEstimate | None:
        """What the step tells of the noise scale, where this is the worker that reports it. factor: of the loss."""
        if self.noise is None:
            return None
        found = self.noise.of(work.sizes, [factor * total.weight for total in totals], self.norm.limit.found[-1])
        return found if self.collectives.rank == 0 else None

    def _lay_down(self, params: Tensor, work: Work) -> list[Total]:
        """Write the sums of this worker's subtrees to where they are sent from. Returns the losses of its ranks."""
        totals: list[Total] = []
        see = _ignore if self.noise is None else self.noise.see
        *before, last = zip(self.reduction.nodes(self.collectives.rank), self.parts, strict=True)
        if self.early is None:
            before.append(last)
        for node, part in before:
            buffers = self.scratch.under(part, node)
            totals += sum_gradients(self.replica, params, work, node, buffers, self.reduction.wire, see)
            if buffers[0] is not part:
                part.copy_(buffers[0])  # rounded
        return totals if self.early is None else totals + self._send(self.early, params, work, *last)

    def _send(self, early: OrderedBuckets, params: Tensor, work: Work, node: Node, part: Tensor) -> list[Total]:
        """Do the same for the last subtree, and send each bucket of all of them once it is complete."""
        buffers = self.scratch.under(part, node)

        def leave(bucket: slice) -> None:
            if buffers[0] is not part:
                part[bucket].copy_(buffers[0][bucket])  # rounded
            early.begin(bucket)

        wire, buckets = self.reduction.wire, early.buckets
        return sum_gradients(self.replica, params, work, node, buffers, wire, buckets=buckets, leave=leave)

    def _summed(self) -> Gradient:
        """The sum over all virtual workers of this worker's span."""
        if self.early is None:
            return self.collectives.reduce_canonical(self.reduction, self.parts).wait()
        self.early.finish()
        return TensorGradient(self.early.total[self.span])

    def _update(self, contribution: Contribution, current: Buffers, following: Buffers) -> tuple[float, ...]:
        """Make the update, or none where the loss is scaled and the gradient not finite; returns the norms that count.
        All workers know the same norm, so they do alike."""
        norms = self.norm.limit.taken()
        if self.scales:
            is_finite = all(map(math.isfinite, norms))
            self.loss_scale = self.loss_scale.after(is_finite)
            if not is_finite:
                following.copy_(current)
                return ()
        self.update.apply([contribution], current, following)
        self.learning_rate = contribution.lr
        return norms

    def gather_state(self) -> Buffers:
        for state in self.versions[self.clock % 2].state.values() if self.total is None else ():
            self.collectives.all_gather(state).wait()
        return self.local_state()

    def local_state(self, lag: int = 0) -> Buffers:
        return self.versions[(self.clock - lag) % 2]

    def finish(self) -> None:
        self.collectives.barrier().wait()

    def _gather(self, own: Gradient) -> Gradient:
        """The summed gradient of the elements that this worker updates, from that of its own span."""
        if self.total is None:
            return own
        if self.early is not None:  # which all have already
            return TensorGradient(self.total[self.updated])
        with span("sums"):
            self.total[self.span] = own.piece(0, self.span.stop - self.span.start)
            self.collectives.all_gather(self.total).wait()
        return TensorGradient(self.total[self.updated])


def _ignore(gradient: Tensor) -> None:
    """Nobody measures it."""
