"""Schedules: the learning rate as a function of examples seen, so that it means the same in every algorithm."""

import math
from collections.abc import Callable

from trainers.optim.scaling import rate_factor, scaled_rate
from trainers.spec import (
    AnySchedule,
    ConstantSchedule,
    CosineSchedule,
    KrizhevskySchedule,
    PolynomialSchedule,
    StepSchedule,
    TrainSpec,
)

Schedule = Callable[[int], float]
"""From the examples trained before an update to its learning rate."""


def build_schedule(spec: TrainSpec, num_examples: int) -> Schedule:
    """The schedule of a run over `num_examples` training examples an epoch: scaled to its batch, and warmed up."""
    after = _scheduled(spec.schedule, scaled_rate(spec), num_examples, spec.epochs)
    return _warmed_up(spec, after, num_examples) if warms_up(spec) else after


def warms_up(spec: TrainSpec) -> bool:
    """Whether there is a warm-up: it leads from the base rate up to a higher one (paper 4, section 5.3: kn > 256)."""
    return spec.warmup.name != "none" and rate_factor(spec) > 1


def drops(schedule: AnySchedule, epochs: int) -> tuple[tuple[float, ...], float]:
    """Where a schedule multiplies the rate, in epochs, and by what."""
    match schedule:
        case StepSchedule(epochs=edges, factor=factor):
            return edges, factor
        case KrizhevskySchedule():
            return (0.25 * epochs, 0.5 * epochs, 0.75 * epochs), 250 ** (-1 / 3)
        case _:
            return (), 1.0


def _scheduled(schedule: AnySchedule, lr: float, num_examples: int, epochs: int) -> Schedule:
    """The schedule without scaling and warm-up, from the rate `lr`."""
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


def _warmed_up(spec: TrainSpec, after: Schedule, num_examples: int) -> Schedule:
    """The same with a warm-up in front; `gradual` ends at what the schedule has there, whatever its form."""
    base, end = spec.optimizer.lr, spec.warmup.epochs * num_examples
    if spec.warmup.name == "constant":
        return lambda seen: base if seen < end else after(seen)
    rise = after(math.ceil(end)) - base
    return lambda seen: base + rise * (seen / end) if seen < end else after(seen)
