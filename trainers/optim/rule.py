"""The interfaces of the update rules: elementwise on a slice, or on one whole parameter after the other.

A rule reads parameters w and their state, and writes the next version into other memory or in place; the same code runs
in a worker and in a shard. The operations and their order are those of torch.optim, where that has the rule, so that a
serial run with torch.optim gives the same bits.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from trainers.optim.buffers import Buffers, State
from trainers.optim.parameter import Parameter


class Rule:
    """What both kinds have in common."""

    state_names: tuple[str, ...] = ()
    first_value: float = 0.0
    """Value of every element of the state before the first update."""
    rate_names: tuple[str, ...] = ()
    """The states that contain the learning rate as a factor and must be corrected when it changes."""


@dataclass(frozen=True)
class Step:
    """How elements are updated."""

    lr: float
    """The learning rate of this update."""
    correction: float = 1.0
    """`momentum_correction` from the last learning rate to this one, for the states in `rate_names`."""
    keep: float = 1.0
    """What decoupled weight decay leaves of the parameters before they are updated, as a factor."""
    exempt: tuple[slice, ...] = ()
    """Parts of the elements, in their order, that it leaves alone."""

    def decayed(self, w: Tensor) -> Tensor:
        """The parameters w (n,) after weight decay; w itself stays as it is."""
        if self.keep == 1:
            return w
        decayed = torch.mul(w, self.keep)
        for part in self.exempt:
            decayed[part] = w[part]
        return decayed


@dataclass(frozen=True)
class Mean:
    """How the gradient of an update comes of a sum over examples: g = (sum / divisor) scale + decay w."""

    divisor: float
    scale: float = 1.0
    decay: float = 0.0
    """Weight decay that is part of the gradient; 0 where `Step.exempt` says."""
    pull: float = 0.0
    """Of the gradient (`Gradient.pull`)."""


class OnePass(Protocol):
    """A rule that goes over memory once, from the gradients on, with the bits of its operations."""

    fuses: ClassVar[bool] = False
    """Whether it makes a gradient of several vectors in the same pass."""

    def __call__(self, current: Buffers, gradients: Sequence[Tensor], following: Buffers, step: Step, of: Mean) -> None:
        """Write the version after `current` into `following`, which may be the same memory.

        gradients: The vectors that the gradient lies in (`Gradient.where_it_lies`), each (n,) and only read; one, where
            it does not fuse them.
        """


class UpdateRule(Rule, ABC):
    """w, state <- rule(w, g, state) on each element by itself. Every tensor is (n,) float32."""

    decouples_decay: ClassVar[bool] = False
    """Whether weight decay shrinks the parameters before an update, and is no part of the gradient."""

    @abstractmethod
    def apply(self, current: Buffers, g: Tensor, following: Buffers, step: Step) -> None:
        """Write the version after `current` into `following`, which may be the same memory; g (n,) is only read."""

    def in_one_pass(self, device: torch.device) -> OnePass | None:
        """The same in one pass on this device; None where it has no such form. A GPU has triton."""
        return None


def spare(current: Buffers, following: Buffers) -> Tensor | None:
    """Memory (n,) for a temporary vector, as `out=`: that of the next parameters, until they are written. None, for a
    vector of its own, where they lie in that of the current ones."""
    into = following.params
    return None if current.params.data_ptr() == into.data_ptr() else into


@dataclass(frozen=True)
class ParameterStep:
    """How one parameter is updated."""

    parameter: Parameter
    lr: float
    """The learning rate of this update."""
    decay: float
    """Its weight decay, which is no part of the gradient that a rule is given."""
    is_exempt: bool
    """Whether `no_decay` names it."""


class ParameterRule(Rule, ABC):
    """w, state <- rule(w, g, state) on one whole parameter of n elements, because its norm counts, or its matrix.

    Slices are cut between parameters for such a rule, so whoever updates a parameter has all of it: the result does not
    depend on who does. Every tensor is (n,) float32; `ParameterStep.parameter` knows the shape.
    """

    @abstractmethod
    def apply(self, current: Buffers, g: Tensor, following: Buffers, step: ParameterStep) -> None:
        """Write the version after `current` into `following`, which may be the same memory; g (n,) is only read."""


NORM_CHUNK = 16 * 1024
"""Elements that torch sums on one thread."""


def norm(x: Tensor) -> Tensor:
    """The L2 norm (), of x (n,): on a CPU from parts in a fixed order, so that it is the same on any number of
    threads."""
    if not x.is_cuda and len(x) > NORM_CHUNK:
        x = torch.stack([torch.linalg.vector_norm(part) for part in torch.split(x, NORM_CHUNK)])
    found: Tensor = torch.linalg.vector_norm(x)
    return found


def initial_state(rule: Rule, like: Tensor) -> State:
    """The state of a rule before the first update, for the slice `like`, (n,)."""
    return {name: torch.full_like(like, rule.first_value) for name in rule.state_names}
