"""The interface of the update rules: elementwise on a slice, so the same code runs in a worker and in a shard.

A rule reads a slice w of the parameters and its state, and writes the next version into other memory or in place. The
operations and their order are those of torch.optim, so that a serial run with torch.optim gives the same bits.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from trainers.optim.buffers import Buffers, State


class UpdateRule(ABC):
    """w, state <- rule(w, g, state). Every tensor is (n,) float32."""

    state_names: ClassVar[tuple[str, ...]] = ()
    first_value: float = 0.0
    """Value of every element of the state before the first update."""
    rate_names: tuple[str, ...] = ()
    """The states that contain the learning rate as a factor and must be corrected when it changes."""

    decouples_decay: ClassVar[bool] = False
    """Whether weight decay shrinks the parameters before an update, and is no part of the gradient."""

    @abstractmethod
    def apply(self, current: Buffers, g: Tensor, following: Buffers, lr: float, correction: float = 1.0) -> None:
        """Write the version after `current` into `following`, which may be the same memory; g (n,) is only read.

        lr: the learning rate of this update.
        correction: `momentum_correction` from the last learning rate to this one, for the states in `rate_names`.
        """


def initial_state(rule: UpdateRule, like: Tensor) -> State:
    """The state of a rule before the first update, for the slice `like`, (n,)."""
    return {name: torch.full_like(like, rule.first_value) for name in rule.state_names}
