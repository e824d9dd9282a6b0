"""Schedules: the learning rate as a function of examples seen, so that it means the same in every algorithm."""

import math
from collections.abc import Callable

from trainers.spec import ConstantSchedule, CosineSchedule, StepSchedule, TrainSpec

Schedule = Callable[[int], float]
"""From the examples trained before an update to its learning rate."""


def build_schedule(spec: TrainSpec, num_examples: int) -> Schedule:
    """The schedule of a run over `num_examples` training examples an epoch."""
    lr, total = spec.optimizer.lr, spec.epochs * num_examples
    match spec.schedule:
        case ConstantSchedule():
            return lambda seen: lr
        case StepSchedule(epochs=epochs, factor=factor):
            edges = [epoch * num_examples for epoch in epochs]
            return lambda seen: lr * factor ** sum(seen >= edge for edge in edges)
        case CosineSchedule(final=final):
            return lambda seen: lr * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(seen / total, 1.0))))
