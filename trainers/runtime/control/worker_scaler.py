"""Decides how many workers to start and which to let go. It starts and ends nothing itself."""

from collections.abc import Sequence
from dataclasses import dataclass

from trainers.errors import SpecRejected
from trainers.runtime.actor_handles import WorkerHandle
from trainers.runtime.control.worker_group import WorkerGroup
from trainers.spec import TrainSpec


@dataclass(frozen=True)
class ScalingDecision:
    """What brings the workers to the number that is wanted."""

    num_to_start: int = 0
    to_release: tuple[WorkerHandle, ...] = ()
    """These leave the training at the end of a step."""


class WorkerScaler:
    """Keeps as many workers as are wanted, whichever of them die or leave."""

    def __init__(self, spec: TrainSpec, is_trial: bool) -> None:
        self.spec = spec
        self.is_trial = is_trial
        self.wanted = spec.most_workers if spec.elastic.follow_cluster else spec.workers.count

    def check(self, count: int) -> None:
        """Whether the run can have so many workers.

        Raises:
            SpecRejected: It cannot.
        """
        if self.is_trial:
            raise SpecRejected("workers: a sweep's trial keeps its size; scale a job")
        self.spec.with_workers(count)

    def want(self, count: int) -> None:
        """Decide for so many workers from now on."""
        self.wanted = count

    def decide(self, workers: Sequence[WorkerHandle], num_reserving: int, draining: frozenset[str]) -> ScalingDecision:
        """What to do now.

        Args:
            workers: All that live, ready or not, leaving or not.
            num_reserving: How many more will be started as soon as there is room for them.
            draining: The nodes that are about to be taken away. Workers leave them, and others are started elsewhere.
        """
        present = [worker for worker in workers if not worker.is_leaving]
        drained = [worker for worker in present if worker.prepared is not None and worker.node in draining]
        if self.is_trial:
            return ScalingDecision(0, tuple(drained))
        staying = [worker for worker in present if worker not in drained]
        missing = max(0, self.wanted - len(staying) - num_reserving)
        return ScalingDecision(missing, (*drained, *staying[self.wanted :]))

    def group_for_newcomer(self, groups: Sequence[WorkerGroup]) -> WorkerGroup | None:
        """The group that a worker joins: one that is short of workers; None means a new group of its own."""
        if self.spec.algorithm.traits.is_synchronous:
            return groups[0]
        return next((group for group in groups if group.is_short), None)
