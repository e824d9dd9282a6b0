"""Mixed mode with `push: delta`: synchronous SGD within a group, asynchronous local SGD between the groups.

Source: a group is one worker of Liu et al. 2024, as in paper 3 (section III.B) it is one of Downpour's.
"""

from __future__ import annotations

import time

from trainers.algorithms.base import Context, Work
from trainers.algorithms.delta_pushes import DeltaPushes
from trainers.algorithms.local_step import LocalStep
from trainers.algorithms.mixed.group_mean import GroupMean
from trainers.models.objective import Total
from trainers.spans import span

PATIENCE_S = 10.0
"""After so long without an answer a group counts as cut off from the shards, and goes on by itself if it may."""


class GroupDeltaPushes(DeltaPushes):
    """One worker of a group. All make the same H steps, each with the mean gradient of the group and an optimizer state
    of its own, which is the same everywhere; the first worker fetches for all and pushes what the steps changed.

    So to the shards a group of g workers is one worker of `downpour` with `push: delta` and minibatches of gn examples.
    """

    def __init__(self, context: Context, steps: int, max_staleness: int | None, apart_s: float = 0.0) -> None:
        """apart_s: how long the group goes on by itself where the shards do not answer."""
        assert context.collectives is not None
        self.apart_s, self.since_s = apart_s, 0.0  # and since when it does
        self.has_begun = False  # whether there is something to go on from
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
        rate. Where the shards do not answer, all go on from what they have."""
        fetched = self.rounds.store is not None and self._fetch()
        with span("fetch"):
            seen = self.group.barrier(signal=1 + self.rounds.seen if fetched else 0).wait()
            self.is_apart = seen == 0
            if not self.is_apart:
                self.group.broadcast(self.own.params, root=0).wait()
                self.rounds.seen = seen - 1
        if self.is_apart and self.rounds.store is not None:
            self.theta = self.own.params.clone()

    def _fetch(self) -> bool:
        """Whether the first worker has fetched; not if it may go on without. What was asked before it was cut off is
        asked again once there is an answer: that is older than what the group has pushed since."""
        store = self.rounds.store
        assert store is not None
        if self.is_apart:
            if not self._is_back():
                return False
            self.rounds.take()
        self.rounds.ask()
        if self.apart_s and self.has_begun and not store.answers(PATIENCE_S):
            self.since_s = time.monotonic()
            return False
        self.theta, self.has_begun = self.rounds.take(), True
        self.own.params.copy_(self.theta)
        return True

    def _is_back(self) -> bool:
        """Whether the shards answer the first worker again; it waits for them once the group has been apart for as long
        as it may."""
        assert self.rounds.store is not None
        return self.rounds.store.answers(0.0) or time.monotonic() - self.since_s >= self.apart_s

    def _is_heard(self) -> bool:
        if not self.is_apart:
            return True
        is_back = self.rounds.store is not None and self._is_back()
        return self.group.barrier(signal=int(is_back)).wait() == 1

    def _gradient(self, work: Work) -> Total:
        return self.sum.compute(self.own.params, work)

    def _examples(self, work: Work) -> int:
        return work.total_examples

    def _end_round(self, epoch: int) -> None:
        if self.rounds.store is None:
            self.rounds.end()
        else:
            super()._end_round(epoch)
