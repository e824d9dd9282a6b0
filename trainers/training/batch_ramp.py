"""`elastic.mode: scale_batch`: the batch of a step follows the number of workers, the learning rate the batch.

What is trained with one number of virtual workers is a stretch. The minibatches of an epoch are the same in all of
them; a stretch takes so many at a time, from where the one before ended. When the batch grows the rate is led up from
the one in force (Lin et al. 2019; the ramp is that of paper 4, section 2.2); when it shrinks it follows at
once. Imports no torch.
"""

from __future__ import annotations

from dataclasses import replace

from trainers.optim.schedules import Schedule
from trainers.spec import TrainSpec
from trainers.training.position import Position


def begin_stretch(place: Position, spec: TrainSpec, num_virtual: int, num_examples: int) -> Position:
    """The same place in the order, with `num_virtual` virtual workers a step from there on; `num_examples` an epoch."""
    before = place.virtual or num_virtual
    if num_virtual == place.virtual:
        return place
    trained = place.first + place.step * before  # minibatches of the epoch
    in_force = factor_in_force(place, spec.following(before), place.examples, num_examples)
    ramp = (in_force, place.examples) if place.virtual else (0.0, 0)
    first = trained - place.step * num_virtual
    return replace(place, virtual=num_virtual, first=first, ramp_from=ramp[0], ramp_since=ramp[1])


def ramped(schedule: Schedule, place: Position, spec: TrainSpec, num_examples: int) -> Schedule:
    """The schedule of a stretch that began at `place`, led up from the rate that was in force before it. `spec` and
    `schedule`: at the stretch's own batch."""
    factor = spec.batch_scaling.rate_factor
    return lambda seen: schedule(seen) * (factor_in_force(place, spec, seen, num_examples) / factor)


def factor_in_force(place: Position, spec: TrainSpec, seen: int, num_examples: int) -> float:
    """By how much the learning rate is multiplied in a stretch, after so many examples since the beginning."""
    factor, length = spec.batch_scaling.rate_factor, spec.elastic.ramp_epochs * num_examples
    if not place.ramp_from or place.ramp_from >= factor or seen >= place.ramp_since + length:
        return factor
    return place.ramp_from + (factor - place.ramp_from) * (seen - place.ramp_since) / length
