"""The interface of the rules for late gradients."""

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from trainers.optim.buffers import State


class LateRule(ABC):
    """g, state <- rule(g, w, w', state), elementwise, where g was computed from w' and meets w. Every tensor is (n,)
    float32."""

    state_names: ClassVar[tuple[str, ...]] = ()
    """What it keeps for each parameter; 0 before the first update."""

    sees_steps: ClassVar[bool] = False
    """Whether `follow` is to be called."""

    @abstractmethod
    def apply(self, g: Tensor, w: Tensor, fetched: Tensor, now: State, then: State, out: Tensor) -> Tensor:
        """The gradient that the optimizer is to see, in `out`; g, w and w' are only read. The state after `now` is
        written into `then`, which may be the same memory."""

    def follow(self, step: Tensor, now: State, then: State) -> None:  # noqa: B027 - few rules look at steps
        """The update has moved the parameters by `step`, (n,), which is only read; the state as for `apply`."""
