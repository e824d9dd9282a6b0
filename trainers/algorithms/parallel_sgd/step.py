"""ParallelSGD: each worker runs SGD by itself on its own examples, and every so often all parameters are averaged.

Sources: paper 2, section 5.1.1, algorithms 1 and 2; Zinkevich et al. 2010, "Parallelized stochastic gradient descent"
(one average); Stich 2019, "Local SGD converges fast and communicates little" (one every H steps).
"""

from __future__ import annotations

from torch import Tensor

from trainers.algorithms.base import Algorithm, Context, Minibatch, StepReport, Work
from trainers.algorithms.parallel_sgd.config import ParallelSgdConfig
from trainers.collectives.average import Average, gather_rows
from trainers.collectives.reduction_tree import block
from trainers.models.objective import Total
from trainers.optim.buffers import Buffers
from trainers.optim.gradient import TensorGradient
from trainers.optim.gradient_norm import NormLimit
from trainers.optim.scaling import momentum_correction
from trainers.optim.update import Contribution, SliceUpdate
from trainers.spans import span


class ParallelSgd(Algorithm):
    """Algorithm 1 of paper 2, once per round.

    The dataset does the shuffle (line 2) before the first minibatch of a round. Each virtual worker makes its SGD steps
    on parameters x and an optimizer state of its own (line 4). Then these are replaced by the mean over all workers
    (line 5), weighted by the examples that each has trained since the last average: the report's 1/k if all have
    trained equally many. In the middle of a round `gather_state` computes that mean too, but no worker continues from
    it.
    """

    def __init__(self, config: ParallelSgdConfig, context: Context) -> None:
        assert context.collectives is not None
        self.config, self.context, self.replica = config, context, context.replica
        self.names = ("x", *context.optimizer.state_names)
        self.numel = context.replica.layout.numel
        start = context.start.buffers
        first = start.params.new_empty(len(self.names), self.numel)  # x, then each state
        for row, vector in zip(first, [start.params, *(start.state[n] for n in self.names[1:])], strict=True):
            row.copy_(vector)
        self.average = Average(context.collectives, context.num_virtual, first.numel())
        self.average.begin(first.flatten())
        device, collectives = self.average.newest.device, context.collectives
        ranks = range(*block(context.num_virtual, collectives.rank, collectives.size))
        self.own = self.average.newest.new_zeros(len(ranks), first.numel())
        self.rows = dict(zip(ranks, self.own, strict=True))
        self.gradient = self.own.new_zeros(self.numel)
        self.limit = NormLimit(context.optimizer)
        self.update = SliceUpdate(context.optimizer, self.numel, device)
        self.examples, self.learning_rate = context.start.examples, context.start.learning_rate
        self.trained: dict[int, int] = {}  # virtual worker -> examples since the last average; empty right after it
        self.all_trained = 0
        self.diverged = any(name in start.state for name in config.private_names(context.optimizer.state_names, 1))
        self._restore()

    def step(self, work: Work) -> StepReport:
        lr = self.context.schedule(self.examples)
        total = sum((self._sgd(minibatch, lr) for minibatch in work.minibatches), Total())
        self.examples += work.total_examples
        self.learning_rate = lr
        steps = self._count(work)
        if work.ends_epoch or steps == self.config.average_every:
            with span("average"):
                self._make_average()
                self.own.copy_(self.average.newest.expand_as(self.own))
            self.trained, self.diverged = {}, False
        return StepReport(total, work.examples, lr, norms=self.limit.taken())

    def gather_state(self) -> Buffers:
        """The mean, and between two averages, on worker 0, also x and optimizer state of each virtual worker."""
        if self.trained:
            self._make_average()
        mean = self._version(self.average.newest)
        if not self.diverged:
            return mean
        num_virtual = self.context.num_virtual
        rows = gather_rows(self.average.collectives, num_virtual, self.own).view(-1, self.numel)
        names = self.config.private_names(self.names[1:], num_virtual)
        return Buffers(mean.params, mean.state | dict(zip(names, rows, strict=len(rows) > 0)))

    def finish(self) -> None:
        self.average.collectives.barrier().wait()

    def _restore(self) -> None:
        """Start each virtual worker from its own vectors in the checkpoint, or from the common ones if it has none."""
        start = self.context.start.buffers
        for rank, row in self.rows.items():
            version = self._version(row)
            version.params.copy_(start.state.get(f"x-{rank}", start.params))
            for name, vector in version.state.items():
                vector.copy_(start.state.get(f"{name}-{rank}", start.state[name]))

    def _sgd(self, minibatch: Minibatch, lr: float) -> Total:
        """One step of one virtual worker, on the mean gradient of its minibatch. Returns the summed loss."""
        batch, rank = minibatch.batch, minibatch.virtual_rank
        if batch is None:
            return Total()
        version = self._version(self.rows[rank])
        total = self.replica.gradient(version.params, batch, self.gradient, mean=True, virtual_rank=rank)
        correction = momentum_correction(self.learning_rate, lr)
        gradient, scale = TensorGradient(self.gradient), self.limit.of(self.gradient)
        contribution = Contribution(gradient, 1, lr, correction=correction, seen=self.examples, scale=scale)
        self.update.apply([contribution], version, version)
        return total

    def _count(self, work: Work) -> int:
        """Count the steps since the last average, this one included, and the examples of each virtual worker in them.

        All minibatches before the last step of an epoch have n examples, so these counts follow from the step number
        and need not be in a checkpoint.
        """
        first, n, num_virtual = work.minibatches[0], self.context.per_worker, self.context.num_virtual
        step = (first.index - first.virtual_rank) // num_virtual
        before = step if self.config.average_every == "round" else step % self.config.average_every
        self.trained = {m.virtual_rank: before * n + (len(m.batch) if m.batch else 0) for m in work.minibatches}
        self.all_trained, self.diverged = before * n * num_virtual + work.total_examples, True
        return before + 1

    def _make_average(self) -> None:
        def weighted(rank: int, into: Tensor) -> None:
            into.copy_(self.rows[rank]).mul_(self.trained[rank])

        self.average.update(weighted, self.all_trained)

    def _version(self, rows: Tensor) -> Buffers:
        """Views of x and the optimizer state in one vector."""
        params, *states = rows.view(-1, self.numel)
        return Buffers(params, dict(zip(self.names[1:], states, strict=True)))
