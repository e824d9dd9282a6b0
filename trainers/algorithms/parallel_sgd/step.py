"""ParallelSGD: each worker runs SGD by itself on its own examples, and every so often all parameters are averaged.

Sources: paper 2, section 5.1.1, algorithms 1 and 2; Zinkevich et al. 2010, "Parallelized stochastic gradient descent"
(one average); Stich 2019, "Local SGD converges fast and communicates little" (one every H steps); Lin et al. 2020,
"Don't use large mini-batches, use local SGD" (post-local SGD: one every step until t', then one every H; H may grow
until then; hierarchical local SGD: averages within groups of workers more often than among all).
"""

from __future__ import annotations

from torch import Tensor

from trainers.algorithms.base import Algorithm, Context, StepReport, Work
from trainers.algorithms.local_steps import LocalSteps
from trainers.algorithms.parallel_sgd.config import ParallelSgdConfig
from trainers.algorithms.parallel_sgd.means import CompressedMeans, WholeMeans
from trainers.collectives.average import GroupAverages
from trainers.optim.buffers import Buffers
from trainers.spans import span


class ParallelSgd(Algorithm):
    """Algorithm 1 of paper 2, once per round.

    The dataset does the shuffle (line 2) before the first minibatch of a round. Each virtual worker makes its SGD steps
    on parameters x and an optimizer state of its own (line 4). Then these are replaced by the mean over all workers
    (line 5), weighted by the examples that each has trained since the last average: the report's 1/k if all have
    trained equally many. In the middle of a round `gather_state` computes that mean too, but no worker continues from
    it.

    With `compress` a worker sends a part of what its parameters have changed, keeps the rest, and adds it in the next
    round; averages within groups, optimizer states, and the mean of a snapshot are whole.
    """

    def __init__(self, config: ParallelSgdConfig, context: Context) -> None:
        assert context.collectives is not None
        self.collectives, self.numel = context.collectives, context.replica.layout.numel
        start, names = context.start.buffers, context.optimizer.state_names
        first = start.params.new_empty(1 + len(names), self.numel)  # x, then each state
        for row, vector in zip(first, [start.params, *(start.state[name] for name in names)], strict=True):
            row.copy_(vector)
        self.names = names
        self.local = LocalSteps(context, config.every, self.collectives.device)
        self.means = (WholeMeans if context.compress is None else CompressedMeans)(context, self.local, first)
        self.within, self.groups = config.within, None
        if config.group is not None:
            self.groups = GroupAverages(self.collectives, context.num_virtual, config.group, first.numel())

    def step(self, work: Work) -> StepReport:
        report = self.local.step(work)
        if self.local.ends_round(work):
            with span("average"):
                self.local.own.copy_(self.means.take().expand_as(self.local.own))
            self.local.begin_round()
        elif self.groups is not None and self.within and not (self.local.steps_before(work) + 1) % self.within:
            with span("average"):
                self._average_within(self.groups)
        return report

    def gather_state(self) -> Buffers:
        """The mean, and between two averages, on worker 0, also x and optimizer state of each virtual worker."""
        params, *states = self.means.now()
        state = dict(zip(self.names, states, strict=True)) | self.means.gather()
        return Buffers(params, state | self.local.gather() if self.local.diverged else state)

    def finish(self) -> None:
        self.collectives.barrier().wait()

    def _average_within(self, groups: GroupAverages) -> None:
        """Within each group, whose members have trained equally many: only the last step of an epoch is uneven."""
        first, own = self.local.ranks.start, self.local.own

        def member(rank: int, into: Tensor) -> None:
            into.copy_(own[rank - first].flatten())

        for ranks, mean in groups.of(member):
            here = own[max(ranks.start - first, 0) : ranks.stop - first]
            here.copy_(mean.view(1, -1, self.numel).expand_as(here))
