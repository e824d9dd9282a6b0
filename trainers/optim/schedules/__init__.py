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


def run_length(warmup: WarmupSpec, scaling: BatchScaling, epochs: float, num_examples: int) -> RunLength:
    """The length of a run with `num_examples` training examples an epoch.

    Raises SpecRejected where its warm-up does not end within it.
    """
    update = scaling.update_batch
    warm = warmup.examples(num_examples, epochs, update) if warms_up(warmup, scaling) else 0.0
    if warm >= epochs * num_examples:
        problem = f"a warm-up of {warmup.length} does not end within a run of {epochs:g} epochs"
        raise SpecRejected(f"warmup: {problem} of {num_examples:,} examples; make it shorter, or warmup.share")
    return RunLength(num_examples, epochs, update, warm)


def build_schedule(
    schedule: AnySchedule, warmup: WarmupSpec, scaling: BatchScaling, epochs: float, num_examples: int
) -> Schedule:
    """The schedule of a run with `num_examples` training examples an epoch: scaled to its batch, with its warm-up.

    Raises SpecRejected where the warm-up does not end within the run.
    """
    run = run_length(warmup, scaling, epochs, num_examples)
    course, lr = schedule.course(run), scaling.learning_rate

    def after(seen: float) -> float:
        return lr * course(seen)

    return warmed_up(warmup, run.warmup, after, scaling.optimizer.lr) if run.warmup else after
