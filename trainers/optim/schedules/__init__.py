"""Schedules: the learning rate as a function of examples seen, so that it is the same in every algorithm. Imports no
torch."""

from typing import Annotated

from pydantic import Field

from trainers.errors import SpecRejected
from trainers.optim.scaling import BatchScaling
from trainers.optim.schedules.base import RunLength, Schedule
from trainers.optim.schedules.cycles import OneCycleSchedule, RestartsSchedule
from trainers.optim.schedules.decays import (
    CosineSchedule,
    InverseSqrtSchedule,
    LinearSchedule,
    PolynomialSchedule,
    WsdSchedule,
)
from trainers.optim.schedules.drops import ConstantSchedule, KrizhevskySchedule, StepSchedule
from trainers.optim.schedules.warmup import WarmupSpec, warmed_up, warms_up

AnySchedule = Annotated[
    ConstantSchedule
    | StepSchedule
    | KrizhevskySchedule
    | CosineSchedule
    | PolynomialSchedule
    | LinearSchedule
    | InverseSqrtSchedule
    | WsdSchedule
    | OneCycleSchedule
    | RestartsSchedule,
    Field(discriminator="name"),
]
"""Whichever schedule a spec names. A new one is one more class in this union."""

__all__ = [
    "AnySchedule",
    "ConstantSchedule",
    "CosineSchedule",
    "InverseSqrtSchedule",
    "KrizhevskySchedule",
    "LinearSchedule",
    "OneCycleSchedule",
    "PolynomialSchedule",
    "RestartsSchedule",
    "RunLength",
    "Schedule",
    "StepSchedule",
    "WarmupSpec",
    "WsdSchedule",
    "build_schedule",
    "run_length",
    "warms_up",
]


def run_length(warmup: WarmupSpec, scaling: BatchScaling, epoch: int, total: int) -> RunLength:
    """The length of a run of `total` examples with `epoch` training examples an epoch.

    Raises SpecRejected where its warm-up does not end within it.
    """
    warm = warmup.examples(epoch, total, scaling.update_batch) if warms_up(warmup, scaling) else 0.0
    if warm >= total:
        problem = f"a warm-up of {warmup.length} does not end within a run of {total / epoch:g} epochs"
        raise SpecRejected(f"warmup: {problem} of {epoch:,} examples; make it shorter, or give warmup.share")
    return RunLength(epoch, total, scaling.update_batch, warm)


def build_schedule(schedule: AnySchedule, warmup: WarmupSpec, scaling: BatchScaling, run: RunLength) -> Schedule:
    """The schedule of a run, scaled to its batch, with its warm-up."""
    course, lr = schedule.course(run), scaling.learning_rate

    def after(seen: float) -> float:
        return lr * course(seen)

    return warmed_up(warmup, run.warmup, after, scaling.optimizer.lr) if run.warmup else after
