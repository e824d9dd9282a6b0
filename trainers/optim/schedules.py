"""Schedules: the learning rate as a function of examples seen, so that it is the same in every algorithm."""

import math
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field

from trainers.optim.scaling import BatchScaling
from trainers.section import Section

Schedule = Callable[[int], float]
"""The learning rate of an update, from the number of examples trained before it."""


class WarmupSpec(Section):
    """The first epochs at a lower rate (paper 4, section 2.2). Without a higher rate to go to it does nothing."""

    name: Literal["none", "constant", "gradual"] = "none"
    """`constant`: the base rate `optimizer.lr` throughout, then a jump; `gradual`: from the base rate by a constant
    increment an iteration to the scaled one."""

    epochs: float = Field(default=5, gt=0, le=1_000_000)
    """How long. The schedule counts its epochs from the start of the run all the same."""


class ConstantSchedule(Section):
    """The learning rate stays what it is."""

    name: Literal["constant"] = "constant"


class StepSchedule(Section):
    """The learning rate is multiplied by `factor` at the end of each of the given epochs (paper 4, section 5.1)."""

    name: Literal["step"] = "step"
    epochs: tuple[float, ...] = (30, 60, 80)
    """When, in epochs from the start."""
    factor: float = Field(default=0.1, gt=0, le=1)
    """By how much."""


class KrizhevskySchedule(Section):
    """The learning rate is multiplied by 250^(-1/3) at 25, 50 and 75 % of the run (paper 1, section 5)."""

    name: Literal["krizhevsky"] = "krizhevsky"


class CosineSchedule(Section):
    """Half a cosine from the learning rate down to `final` times it over the run."""

    name: Literal["cosine"] = "cosine"
    final: float = Field(default=0.0, ge=0, le=1)
    """What is left at the end, as a share of the first rate."""


class PolynomialSchedule(Section):
    """(1 - share of the run)^power, from the learning rate down to `final` times it."""

    name: Literal["polynomial"] = "polynomial"
    power: float = Field(default=2.0, gt=0, le=100)
    """1: a straight line; 2 as in You et al. 2017."""
    final: float = Field(default=0.0, ge=0, le=1)
    """What is left at the end, as a share of the first rate."""


AnySchedule = Annotated[
    ConstantSchedule | StepSchedule | KrizhevskySchedule | CosineSchedule | PolynomialSchedule,
    Field(discriminator="name"),
]


def build_schedule(
    schedule: AnySchedule, warmup: WarmupSpec, scaling: BatchScaling, epochs: int, num_examples: int
) -> Schedule:
    """The schedule of a run with `num_examples` training examples per epoch: scaled to its batch, with its warm-up."""
    after = _scheduled(schedule, scaling.learning_rate, num_examples, epochs)
    if not warms_up(warmup, scaling):
        return after
    return _warmed_up(warmup, after, scaling.optimizer.lr, num_examples)


def warms_up(warmup: WarmupSpec, scaling: BatchScaling) -> bool:
    """Whether there is a warm-up: only if the scaled rate is above the base rate (paper 4, section 5.3: kn > 256)."""
    return warmup.name != "none" and scaling.rate_factor > 1


def drops(schedule: AnySchedule, epochs: int) -> tuple[tuple[float, ...], float]:
    """The epochs at which a schedule multiplies the rate, and the factor."""
    match schedule:
        case StepSchedule(epochs=edges, factor=factor):
            return edges, factor
        case KrizhevskySchedule():
            return (0.25 * epochs, 0.5 * epochs, 0.75 * epochs), 250 ** (-1 / 3)
        case _:
            return (), 1.0


def _scheduled(schedule: AnySchedule, lr: float, num_examples: int, epochs: int) -> Schedule:
    """The schedule without scaling and warm-up, starting from the rate `lr`."""
    total = epochs * num_examples
    match schedule:
        case ConstantSchedule():
            return lambda seen: lr
        case StepSchedule() | KrizhevskySchedule():
            in_epochs, factor = drops(schedule, epochs)
            edges = [epoch * num_examples for epoch in in_epochs]
            return lambda seen: lr * factor ** sum(seen >= edge for edge in edges)
        case CosineSchedule(final=final):
            return lambda seen: lr * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(seen / total, 1.0))))
        case PolynomialSchedule(power=power, final=final):
            return lambda seen: lr * (final + (1 - final) * (1 - min(seen / total, 1.0)) ** power)


def _warmed_up(warmup: WarmupSpec, after: Schedule, base: float, num_examples: int) -> Schedule:
    """The schedule `after` with a warm-up from the rate `base`; `gradual` ends at the rate that `after` has at that
    point."""
    end = warmup.epochs * num_examples
    if warmup.name == "constant":
        return lambda seen: base if seen < end else after(seen)
    rise = after(math.ceil(end)) - base
    return lambda seen: base + rise * (seen / end) if seen < end else after(seen)
