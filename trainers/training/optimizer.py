"""From a spec to what updates its parameters."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from torch import nn

from trainers.errors import SpecRejected
from trainers.models.layout import Layout
from trainers.optim.decay import exempt_names
from trainers.optim.ema import EMA
from trainers.optim.members import group_members
from trainers.optim.optimizer import Group, Optimizer
from trainers.optim.parameter import Parameter
from trainers.optim.roles import hidden_matrices
from trainers.optim.schedules import AnySchedule
from trainers.spec import TrainSpec

Ends = tuple[tuple[int, int], ...]
"""Start and stop of each of some spans."""


def optimizer_of(spec: TrainSpec, num_examples: int, model: nn.Module, layout: Layout) -> Optimizer:
    """What makes the versions of this model: the spec's optimizer, or where workers step by themselves with that, the
    rule by which shards apply what it changed.

    Raises:
        SpecRejected: A group has no parameter.
    """
    own = own_optimizer_of(spec, num_examples, model, layout)
    return own if (outer := _outer(spec)) is None else outer


def own_optimizer_of(spec: TrainSpec, num_examples: int, model: nn.Module, layout: Layout) -> Optimizer:
    """What steps on gradients of this model; num_examples: in the training set.

    Raises:
        SpecRejected: A group has no parameter.
    """
    owners = group_members(spec.optimizer.groups, [name for name, _ in model.named_parameters()])
    exempt = layout.spans_of(exempt_names(model, spec.optimizer.no_decay))
    parameters = layout.parameters(hidden_matrices(model)) if spec.optimizer.whole else ()
    return _own(spec, num_examples, ends(exempt), [ends(layout.spans_of(names)) for names in owners], parameters)


def build_optimizer(
    spec: TrainSpec, num_examples: int, exempt: Ends, groups: Sequence[Ends], parameters: tuple[Parameter, ...] = ()
) -> Optimizer:
    """As `optimizer_of`, of a vector in which these are the parts without weight decay, those of each of the spec's
    groups, and the parameters, where they are updated one by one.

    Raises:
        SpecRejected: The average and a state of the rule have one name.
    """
    outer = _outer(spec)
    return outer or _own(spec, num_examples, exempt, groups, parameters)


def rate_of_versions(spec: TrainSpec, num_examples: int) -> Callable[[int], float]:
    """The learning rate of `optimizer_of`, from the examples applied; num_examples: in the training set."""
    outer = spec.algorithm.traits.outer
    if outer is None:
        return spec.learning_rate(num_examples)
    return lambda _: outer.lr


def _outer(spec: TrainSpec) -> Optimizer | None:
    """By what shards apply what workers changed."""
    outer, pushers = spec.algorithm.traits.outer, spec.algorithm.traits.num_pushers(spec.workers.count)
    return None if outer is None else Optimizer(outer.build(pushers), ema=spec.ema)


def _own(
    spec: TrainSpec, num_examples: int, exempt: Ends, groups: Sequence[Ends], parameters: tuple[Parameter, ...]
) -> Optimizer:
    """What steps on gradients of such a vector.

    All weight decays are scaled to the batch (`BatchScaling`).

    Raises:
        SpecRejected: The average and a state of the rule have one name.
    """
    scaling, own = spec.batch_scaling, spec.optimizer
    rule = own.build()
    if spec.ema is not None and EMA in rule.state_names:
        raise SpecRejected(f"ema: the optimizer keeps a state that is called {EMA} too; leave one of them out")
    late, ema = spec.algorithm.traits.late, None if spec.algorithm.traits.outer else spec.ema
    parts = [own.of_group(group) for group in own.groups]
    courses = [_course(spec, num_examples, group.schedule) for group in own.groups]
    return Optimizer(
        rule,
        scaling.weight_decay,
        slices(exempt),
        tuple(
            Group(part.build(), replace(scaling, optimizer=part).weight_decay, part.lr / own.lr, slices(span), course)
            for part, span, course in zip(parts, groups, courses, strict=True)
        ),
        parameters,
        spec.clip,
        ema,
        None if late is None else late.build(),
    )


def _course(spec: TrainSpec, num_examples: int, schedule: AnySchedule | None) -> Callable[[int], float] | None:
    """What a group's own schedule makes of its rate, as a multiple of what the run's makes."""
    if schedule is None:
        return None
    run = spec.run_length(num_examples)
    mine, others = schedule.course(run), spec.schedule.course(run)

    def course(seen: int) -> float:
        share = others(seen)
        return mine(seen) / share if share else 1.0  # where the run's rate is 0, this one is too

    return course


def ends(spans: Iterable[slice]) -> Ends:
    """What a message says of spans."""
    return tuple((span.start, span.stop) for span in spans)


def slices(spans: Iterable[tuple[int, int]]) -> tuple[slice, ...]:
    """The spans of which a message tells."""
    return tuple(slice(*span) for span in spans)
