"""Steps that each virtual worker makes by itself, in rounds: on parameters and an optimizer state of its own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from trainers.algorithms.base import Context, Minibatch, StepReport, Work
from trainers.algorithms.config import names_of_ranks
from trainers.algorithms.local_step import LocalStep
from trainers.collectives.average import gather_rows
from trainers.collectives.reduction_tree import block
from trainers.models.objective import Total
from trainers.optim.buffers import Buffers, State


class LocalSteps:
    """Parameters x and optimizer state of each virtual worker of this worker, which nobody else updates."""

    def __init__(self, context: Context, every: Callable[[int], int | None], device: torch.device) -> None:
        """every: steps of a round, by epoch; None: only the end of the epoch ends one, as it does any other."""
        assert context.collectives is not None
        self.context, self.collectives, self.every = context, context.collectives, every
        self.names = ("x", *context.optimizer.state_names)
        self.numel = context.replica.layout.numel
        self.ranks = range(*block(context.num_virtual, self.collectives.rank, self.collectives.size))
        self.own = torch.zeros(len(self.ranks), len(self.names), self.numel, device=device)
        self.versions = {rank: self._version(rows) for rank, rows in zip(self.ranks, self.own, strict=True)}
        self.one = LocalStep(context, device)
        self.examples, self.learning_rate = context.start.examples, context.start.learning_rate
        self.trained: dict[int, int] = {}  # virtual worker -> examples in this round; empty before its first step
        self.all_trained = 0
        self.diverged = "x-0" in context.start.buffers.state  # whether a round is under way
        self._restore()

    def step(self, work: Work) -> StepReport:
        """Make one step of each virtual worker."""
        lr = self.context.schedule(self.examples)
        total = sum((self._sgd(minibatch, lr) for minibatch in work.minibatches), Total())
        self.examples += work.total_examples
        self.learning_rate = lr
        self._count(work)
        return StepReport(total, work.examples, lr, norms=self.one.limit.taken())

    def begin_round(self) -> None:
        """The virtual workers have the same parameters again."""
        self.trained, self.diverged = {}, False

    def gather(self) -> State:
        """On worker 0 the vectors of all virtual workers, `<name>-<rank>` -> (P,); on the others none. Collective."""
        num_virtual = self.context.num_virtual
        rows = gather_rows(self.collectives, num_virtual, self.own.flatten(1)).view(-1, self.numel)
        return dict(zip(names_of_ranks(self.names, num_virtual), rows, strict=len(rows) > 0))

    def gather_with_means(self, apart: bool) -> State:
        """The same, and the mean of each vector of their optimizer states, from which another algorithm can go on.
        apart: whether they have parameters of their own, which are left out otherwise."""
        own, ranks = self.gather(), range(self.context.num_virtual)
        if not own:
            return {}
        state = {n: torch.stack([own[f"{n}-{k}"] for k in ranks]).mean(0) for n in self.names[1:]}
        return state | {name: vector for name, vector in own.items() if apart or not name.startswith("x-")}

    def ends_round(self, work: Work) -> bool:
        """Whether the step that was just made is the last of a round."""
        every = self.every(work.epoch)
        return work.ends_epoch or (every is not None and self.steps_before(work) + 1 == every)

    def examples_of(self, work: Work, steps: int) -> tuple[dict[int, int], int]:
        """By virtual worker of this worker, and of all, in the last so many steps of the epoch, this one included.

        All minibatches before the last step of an epoch have n examples, so these counts follow from the number of
        steps and need not be in a checkpoint.
        """
        before, n = steps - 1, self.context.per_worker
        trained = {m.virtual_rank: before * n + (len(m.batch) if m.batch else 0) for m in work.minibatches}
        return trained, before * n * self.context.num_virtual + work.total_examples

    def steps_before(self, work: Work) -> int:
        """Steps of the round before this one."""
        step, every = self.steps_of(work), self.every(work.epoch)
        return step if every is None else step % every

    def steps_of(self, work: Work) -> int:
        """Steps of the epoch before this one."""
        first = work.minibatches[0]
        return (first.index - first.virtual_rank) // self.context.num_virtual

    def _restore(self) -> None:
        """Start each virtual worker from its own vectors in the checkpoint, or from the common ones if it has none."""
        start = self.context.start.buffers
        for rank, version in self.versions.items():
            version.params.copy_(start.state.get(f"x-{rank}", start.params))
            for name, vector in version.state.items():
                vector.copy_(start.state.get(f"{name}-{rank}", start.state[name]))

    def _sgd(self, minibatch: Minibatch, lr: float) -> Total:
        """One step of one virtual worker. Returns the summed loss."""
        if minibatch.batch is None:
            return Total()
        version = self.versions[minibatch.virtual_rank]
        total = self.one.compute(version.params, minibatch)
        self.one.apply(version, lr, self.examples, self.learning_rate)
        return total

    def _count(self, work: Work) -> None:
        """Count the examples of each virtual worker in this round."""
        self.trained, self.all_trained = self.examples_of(work, self.steps_before(work) + 1)
        self.diverged = True

    def _version(self, rows: Tensor) -> Buffers:
        """x and optimizer state of one virtual worker, in its rows (names, P)."""
        params, *states = rows
        return Buffers(params, dict(zip(self.names[1:], states, strict=True)))
