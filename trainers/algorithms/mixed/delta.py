"""Mixed mode with `push: delta`: synchronous SGD within a group, asynchronous local SGD between the groups.

Source: a group is one worker of Liu et al. 2024, as in paper 3 (section III.B) it is one of Downpour's.
"""

from __future__ import annotations

from trainers.algorithms.base import Context, Work
from trainers.algorithms.delta_pushes import DeltaPushes
from trainers.algorithms.local_step import LocalStep
from trainers.algorithms.mixed.group_mean import GroupMean
from trainers.models.objective import Total
from trainers.spans import span


class GroupDeltaPushes(DeltaPushes):
    """One worker of a group. All make the same H steps, each with the mean gradient of the group and an optimizer state
    of its own, which is the same everywhere; the first worker fetches for all and pushes what the steps changed.

    So to the shards a group of g workers is one worker of `downpour` with `push: delta` and minibatches of gn examples.
    """

    def __init__(self, context: Context, steps: int, max_staleness: int | None) -> None:
        assert context.collectives is not None
        self.group = context.collectives
        self.sum = GroupMean(context)
        super().__init__(context, steps, max_staleness)

    def finish(self) -> None:
        super().finish()
        self.group.barrier().wait()

    def _local_step(self) -> LocalStep:
        return LocalStep(self.context, self.sum.mean.device, self.sum.mean)

    def _begin_round(self) -> None:
        """The first worker fetches the parameters and broadcasts them, with the examples seen, which set the learning
        rate."""
        self.rounds.seen = 0
        if self.rounds.store is not None:
            super()._begin_round()
        with span("fetch"):
            self.group.broadcast(self.own.params, root=0).wait()
            self.rounds.seen = self.group.barrier(signal=self.rounds.seen).wait()

    def _gradient(self, work: Work) -> Total:
        return self.sum.compute(self.own.params, work)

    def _examples(self, work: Work) -> int:
        return work.total_examples

    def _end_round(self, epoch: int) -> None:
        if self.rounds.store is None:
            self.rounds.end()
        else:
            super()._end_round(epoch)
