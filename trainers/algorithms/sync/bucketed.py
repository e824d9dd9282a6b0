"""Synchronous SGD whose gradients are summed in buckets while the backward pass goes on (paper 4, section 4)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from trainers.algorithms.base import Algorithm, Context, StepReport, Work
from trainers.algorithms.sync.config import SyncConfig
from trainers.collectives.bucketed import BucketScheduler, build_bucket_reducer, gathered
from trainers.collectives.reduction import ReducedSpan
from trainers.collectives.step_weight import StepWeight
from trainers.models.objective import Total
from trainers.optim.buffers import Buffers
from trainers.optim.scaling import momentum_correction
from trainers.optim.update import Contribution, SliceUpdate
from trainers.spans import span

BUCKET_BYTES = 2**20
IN_FLIGHT = 2


class SyncBucketed(Algorithm):
    """Gradients are summed bucket by bucket while the backward pass continues (paper 4, section 4).

    The buckets are reduced from the last layer to the first, in the order of back-propagation. Each worker updates its
    part of a bucket when the sum of that part is complete, and the others receive the result. All workers have the same
    bits, because each part of a version is computed once and copied, or computed by all from copies of one sum.
    """

    def __init__(self, config: SyncConfig, context: Context) -> None:
        assert context.collectives is not None
        self.context, self.replica, self.collectives = context, context.replica, context.collectives
        start, layout = context.start, context.replica.layout
        self.buckets = gathered(layout.buckets(1), config.bucket_bytes or BUCKET_BYTES)
        initial = Buffers(
            start.buffers.params.to(self.collectives.device),
            {name: start.buffers.state[name].to(self.collectives.device) for name in context.optimizer.state_names},
        )
        self.reducer = build_bucket_reducer(
            self.collectives, initial.params, config.all_reduce or "auto", config.in_flight or IN_FLIGHT
        )
        self.versions = [
            Buffers(
                self.reducer.replicated(f"params-{i}", initial.params),
                {name: self.reducer.replicated(f"{name}-{i}", first) for name, first in initial.state.items()},
            )
            for i in (0, 1)
        ]
        device = self.reducer.part.device
        self.weight = StepWeight(self.replica.weight_per_example, self.collectives, context.num_virtual, device)
        self.divisor = 0.0  # the weight of the step under way
        self.accrued: Tensor | None = None  # (P,) the gradient of one virtual worker, if this worker has several
        self.updates: dict[tuple[int, int], SliceUpdate] = {}  # (start, stop) in the vector -> its update
        self.examples, self.clock = start.examples, 0
        self.learning_rate = start.learning_rate  # of the last update

    def step(self, work: Work) -> StepReport:
        current, following = self.versions[self.clock % 2], self.versions[(self.clock + 1) % 2]
        lr = self.context.schedule(self.examples)

        def update(bucket: slice, share: ReducedSpan) -> None:
            span = slice(bucket.start + share.span.start, bucket.start + share.span.stop)
            self._update(share, span, lr)

        def reduce(bucket: slice) -> None:
            with span("sums"):
                self.reducer.begin(bucket, update, following.params)

        total = self._gradients(current.params, work, reduce)
        with span("sums"):
            self.reducer.finish(following.params)
        self.clock += 1
        self.examples += work.total_examples
        self.learning_rate = lr
        return StepReport(total, work.examples, lr)

    def gather_state(self) -> Buffers:
        newest = self.versions[self.clock % 2]
        for state in newest.state.values():
            self.reducer.gather(state, [bucket.span for bucket in self.buckets])
        return newest

    def local_state(self, lag: int = 0) -> Buffers | None:
        newest = self.versions[(self.clock - lag) % 2]
        return newest if self.reducer.survives_worker or not newest.state else None

    def finish(self) -> None:
        self.collectives.barrier().wait()

    def _gradients(self, params: Tensor, work: Work, reduce: Callable[[slice], None]) -> Total:
        """Sum the gradients of this worker's virtual ranks, and call `reduce` for each bucket once its sum is complete.

        Returns the sum of the losses.
        """
        weights: list[float] = []

        def agree(weight: float) -> None:
            """Before the first bucket is complete, all workers know the weight of the step."""
            weights.append(weight)
            self.divisor = self.weight.of(work.total_examples, weights + [0.0] * (len(work.minibatches) - len(weights)))

        part = self.reducer.part
        minibatches = [(m.virtual_rank, m.batch) for m in work.minibatches if m.batch is not None]
        if not minibatches:  # the epoch has no examples left for this worker
            part.zero_()
            self.divisor = self.weight.of(work.total_examples, [0.0] * len(work.minibatches))
            BucketScheduler(self.buckets, reduce).rest()
            return Total()
        *before, (last, batch) = minibatches
        into = part
        total = Total()
        for rank, earlier in before:
            found = self.replica.gradient(params, earlier, into, virtual_rank=rank)
            total += found
            weights.append(found.weight)
            if into is not part:
                part += into
            into = self._scratch()

        def complete(bucket: slice) -> None:
            if into is not part:
                part[bucket] += into[bucket]
            reduce(bucket)

        scheduler = BucketScheduler(self.buckets, complete)
        return total + self.replica.gradient(
            params, batch, into, virtual_rank=last, on_ready=scheduler.ready, on_weight=agree
        )

    def _scratch(self) -> Tensor:
        if self.accrued is None:  # zeros, because the gaps of the layout must be 0
            self.accrued = self.reducer.part.new_zeros(self.reducer.part.shape)
        return self.accrued

    def _update(self, share: ReducedSpan, span: slice, lr: float) -> None:
        """Write this worker's part of the next version. May be called from several threads, for different spans."""
        current, following = self.versions[self.clock % 2], self.versions[(self.clock + 1) % 2]
        key = (span.start, span.stop)
        if key not in self.updates:
            numel, device = span.stop - span.start, current.params.device
            self.updates[key] = SliceUpdate(self.context.optimizer.within(span), numel, device)
        correction = momentum_correction(self.learning_rate, lr)
        contribution = Contribution(share.gradient, self.divisor, lr, correction=correction, seen=self.examples)
        self.updates[key].apply([contribution], current.part(span), following.part(span))
