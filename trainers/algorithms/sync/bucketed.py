"""Synchronous SGD whose gradients are summed in buckets while the passes go on.

Sources: paper 4, section 4 (behind the backward pass); Jayarajan et al. 2019 (behind the next forward pass).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from trainers.algorithms.base import Algorithm, Context, StepReport, Work
from trainers.algorithms.sync.config import SyncConfig
from trainers.collectives.agreement.step_weight import StepWeight
from trainers.collectives.bucketed import BucketScheduler, build_bucket_reducer, gathered
from trainers.collectives.buckets import BUCKET_BYTES, IN_FLIGHT, Bucket
from trainers.collectives.reduction import ReducedSpan
from trainers.models.objective import Total
from trainers.optim.buffers import Buffers
from trainers.optim.scaling import momentum_correction
from trainers.optim.update import Contribution, SliceUpdate
from trainers.spans import span


class SyncBucketed(Algorithm):
    """Gradients are summed bucket by bucket while the backward pass continues (paper 4, section 4), and while the next
    forward pass does: a layer waits for its own parameters alone (Jayarajan et al. 2019).

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
        are_near = context.replica.device.type == self.collectives.device.type == "cpu"  # else they are copied at once
        # A version whose optimizer state is spread over the workers does not outlive any of them. Without a state
        # each worker has all of it after a step, from which the others go on where one dies.
        self.is_left_open = self.reducer.runs_beside and bool(initial.state) and are_near
        self.replica.on_use = self._before_use if self.is_left_open else None
        self.bucket_of = {name: bucket for bucket in self.buckets for name in bucket.names}
        self.travels: Tensor | None = None  # the parameters of the newest version, as long as buckets of it may travel
        self.awaited: dict[str, Bucket] = {}  # parameters of it that nobody has waited for -> bucket
        device = self.reducer.part.device
        self.weight = StepWeight(self.replica.weight_per_example, self.collectives, context.num_virtual, device)
        self.divisor = 0.0  # the weight of the step under way
        self.accrued: Tensor | None = None  # (P,) the gradient of one virtual worker, if this worker has several
        self.updates: dict[tuple[int, int], SliceUpdate] = {}  # (start, stop) in the vector -> its update
        self.examples, self.clock = start.examples, 0
        self.learning_rate = start.learning_rate  # of the last update

    def step(self, work: Work) -> StepReport:
        current, following = self.versions[self.clock % 2], self.versions[(self.clock + 1) % 2]
        lr, seen = self.context.schedule(self.examples), self.examples
        correction = momentum_correction(self.learning_rate, lr)

        def update(bucket: slice, share: ReducedSpan) -> None:
            """Write this worker's part of the next version. May be called from several threads, for different spans,
            and when this worker is a step further."""
            span = slice(bucket.start + share.span.start, bucket.start + share.span.stop)
            contribution = Contribution(share.gradient, self.divisor, lr, correction=correction, seen=seen)
            self._update_of(span).apply([contribution], current.part(span), following.part(span))

        def reduce(bucket: slice) -> None:
            with span("sums"):
                self.reducer.begin(bucket, update, following.params)

        total = self._gradients(current.params, work, reduce)
        self.travels, self.awaited = following.params, self.bucket_of.copy()
        if not self.is_left_open:
            self._complete()
        self.clock += 1
        self.examples += work.total_examples
        self.learning_rate = lr
        return StepReport(total, work.examples, lr)

    def gather_state(self) -> Buffers:
        self._complete()
        newest = self.versions[self.clock % 2]
        for state in newest.state.values():
            self.reducer.gather(state, [bucket.span for bucket in self.buckets])
        return newest

    def local_state(self, lag: int = 0) -> Buffers | None:
        newest = self.versions[(self.clock - lag) % 2]
        return newest if self.reducer.survives_worker or not newest.state else None

    def finish(self) -> None:
        self._complete()
        self.collectives.barrier().wait()

    def _before_use(self, name: str) -> None:
        """Wait for the parameters that travel with this one, which the forward pass is about to use."""
        if name in self.awaited:
            bucket = self.awaited[name]
            with span("sums"):
                self.reducer.complete(bucket.span)
            for together in bucket.names:
                del self.awaited[together]

    def _complete(self) -> None:
        """Wait for all of the newest version, also for what the forward pass did not use: what it is summed from is
        overwritten next."""
        if self.travels is not None:
            with span("sums"):
                self.reducer.finish(self.travels)
            self.travels, self.awaited = None, {}

    def _gradients(self, params: Tensor, work: Work, reduce: Callable[[slice], None]) -> Total:
        """Sum the gradients of this worker's virtual ranks, and call `reduce` for each bucket once its sum is complete.

        Returns the sum of the losses.
        """
        weights: list[float] = []

        def begin(weight: float) -> None:
            """Before a backward pass: it writes to where the last step's gradients may still be read."""
            self._complete()
            weights.append(weight)

        def agree(weight: float) -> None:
            """Before the first bucket is complete, all workers know the weight of the step."""
            begin(weight)
            self.divisor = self.weight.of(work.total_examples, weights + [0.0] * (len(work.minibatches) - len(weights)))

        part = self.reducer.part
        minibatches = [(m.virtual_rank, m.batch) for m in work.minibatches if m.batch is not None]
        if not minibatches:  # the epoch has no examples left for this worker
            self._complete()
            part.zero_()
            self.divisor = self.weight.of(work.total_examples, [0.0] * len(work.minibatches))
            BucketScheduler(self.buckets, reduce).rest()
            return Total()
        *before, (last, batch) = minibatches
        into = part
        total = Total()
        for rank, earlier in before:
            total += self.replica.gradient(params, earlier, into, virtual_rank=rank, on_weight=begin)
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

    def _update_of(self, span: slice) -> SliceUpdate:
        """That of a part of the vector, always the same."""
        key = (span.start, span.stop)
        if key not in self.updates:
            numel, device = span.stop - span.start, self.versions[0].params.device
            self.updates[key] = SliceUpdate(self.context.optimizer.within(span), numel, device)
        return self.updates[key]
