"""How a vector of parameters is updated: by one rule, and parts of it with hyperparameters of their own."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trainers.optim.buffers import State
from trainers.optim.clip import ClipSpec
from trainers.optim.ema import EMA, EmaSpec
from trainers.optim.late.rule import LateRule
from trainers.optim.parameter import Parameter
from trainers.optim.rule import Rule, initial_state
from trainers.optim.slices import ALIGN, PARAMETER_ALIGN, within

Spans = tuple[slice, ...]


@dataclass(frozen=True)
class Group:
    """Some of the parameters, with hyperparameters of their own (`optimizer.groups`)."""

    rule: Rule
    """Of the same class as the other parameters', so with the same state."""
    weight_decay: float
    rate: float
    """Their learning rate as a multiple of the other parameters'."""
    spans: Spans
    """Where they lie in the vector."""
    course: Callable[[int], float] | None = None
    """What its own schedule makes of its rate, as a multiple of what the run's makes, from the examples seen."""

    def rate_at(self, seen: int) -> float:
        """Their learning rate as a multiple of that of the update."""
        return self.rate if self.course is None else self.rate * self.course(seen)


@dataclass(frozen=True)
class Optimizer:
    """What updates a vector, or a slice of it."""

    rule: Rule
    weight_decay: float = 0.0
    exempt: Spans = ()
    """Parts of the vector without weight decay, whatever their group."""
    groups: tuple[Group, ...] = ()
    """They do not overlap; what is in none has `rule` and `weight_decay`."""
    parameters: tuple[Parameter, ...] = ()
    """All parameters, where the rule takes them one by one (`ParameterRule`)."""
    clip: ClipSpec | None = None
    """What the gradients are limited to."""
    ema: EmaSpec | None = None
    """How an average follows the parameters."""
    late: LateRule | None = None
    """What is made of gradients that were computed from older parameters."""

    @property
    def block(self) -> int:
        """Elements: wherever the vector is cut, it is cut at multiples of so many."""
        return PARAMETER_ALIGN if self.parameters else ALIGN

    @property
    def state_names(self) -> tuple[str, ...]:
        """What is kept for each parameter: the states of both rules, and the average."""
        late = () if self.late is None else self.late.state_names
        return (*self.rule.state_names, *late, *(() if self.ema is None else (EMA,)))

    def initial_state(self, params: Tensor) -> State:
        """What is kept beside these parameters (n,) before the first update."""
        state = initial_state(self.rule, params)
        if self.late is not None:
            state |= {name: torch.zeros_like(params) for name in self.late.state_names}
        return state if self.ema is None else state | {EMA: params.clone()}

    def within(self, cut: slice) -> "Optimizer":
        """What updates the slice `cut` of the vector."""
        mine = [p for p in self.parameters if cut.start <= p.start < cut.stop]
        assert all(p.span.stop <= cut.stop for p in mine), "a parameter is cut that is updated as a whole"
        moved = tuple(replace(p, start=p.start - cut.start) for p in mine)
        return replace(self.moved(lambda spans: within(spans, cut)), parameters=moved)

    def moved(self, move: Callable[[Spans], Spans]) -> "Optimizer":
        """The same for parameters that lie elsewhere; move: says where those of some spans do."""
        groups = tuple(replace(group, spans=move(group.spans)) for group in self.groups)
        return replace(self, exempt=move(self.exempt), groups=groups)

    def by_group(self, numel: int) -> list[Group]:
        """The vector of `numel` elements divided into groups, those in no other group first."""
        others = complement([span for group in self.groups for span in group.spans], numel)
        return [Group(self.rule, self.weight_decay, 1.0, others), *self.groups]


def complement(spans: Iterable[slice], numel: int) -> Spans:
    """What is left of [0, numel) without these spans, which do not overlap."""
    ordered: Sequence[slice] = sorted(spans, key=lambda span: span.start)
    starts, stops = [0, *(span.stop for span in ordered)], [*(span.start for span in ordered), numel]
    return tuple(slice(a, b) for a, b in zip(starts, stops, strict=True) if a < b)
