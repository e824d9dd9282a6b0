"""Update rules: elementwise on a flat slice, so the same code runs in a worker and in a shard.

A rule reads the slice `w` and its state and writes the next ones, into other memory or in place. The operations and
their order are those of torch.optim, so that a serial run with torch.optim gives the same bits.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from trainers.spec import AdagradSpec, AnyOptimizer, MomentumSpec, NesterovSpec, RmspropSpec, SgdSpec

State = dict[str, Tensor]  # name -> (n,) float32, beside the slice


class UpdateRule(ABC):
    """w, state <- rule(w, g, state). Every tensor is (n,) float32; `g` is only read."""

    state_names: ClassVar[tuple[str, ...]] = ()
    first_value: float = 0.0
    """Of every element of the state, before the first update."""
    rate_names: tuple[str, ...] = ()
    """States that hold the learning rate and are corrected when it changes."""

    @abstractmethod
    def apply(
        self, w: Tensor, g: Tensor, state: State, lr: float, out_w: Tensor, out_state: State, correction: float = 1.0
    ) -> None:
        """One update with the learning rate `lr`; `out_w` may be `w` and `out_state` may be `state`.

        correction: `momentum_correction` of the rate before and this one, for a rule whose state holds the rate.
        """


class Sgd(UpdateRule):
    """w <- w - lr g."""

    def __init__(self, spec: SgdSpec) -> None:
        self.spec = spec

    def apply(
        self, w: Tensor, g: Tensor, state: State, lr: float, out_w: Tensor, out_state: State, correction: float = 1.0
    ) -> None:
        torch.add(w, g, alpha=-lr, out=out_w)


class Momentum(UpdateRule):
    """u <- m u + g, w <- w - lr u (paper 4, equation 9)."""

    state_names = ("momentum",)

    def __init__(self, spec: MomentumSpec) -> None:
        self.m = spec.momentum

    def apply(
        self, w: Tensor, g: Tensor, state: State, lr: float, out_w: Tensor, out_state: State, correction: float = 1.0
    ) -> None:
        u = torch.mul(state["momentum"], self.m, out=out_state["momentum"]).add_(g)
        torch.add(w, u, alpha=-lr, out=out_w)


class Velocity(UpdateRule):
    """v <- m (lr / rate before) v + lr g, w <- w - v (paper 4, equation 10; the quotient is momentum correction)."""

    state_names = ("velocity",)

    def __init__(self, spec: MomentumSpec) -> None:
        self.m, self.corrects = spec.momentum, spec.momentum_correction
        self.rate_names = self.state_names if self.corrects else ()

    def apply(
        self, w: Tensor, g: Tensor, state: State, lr: float, out_w: Tensor, out_state: State, correction: float = 1.0
    ) -> None:
        m = self.m * correction if self.corrects else self.m
        v = torch.mul(state["velocity"], m, out=out_state["velocity"]).add_(g, alpha=lr)
        torch.sub(w, v, out=out_w)


class Nesterov(UpdateRule):
    """u <- m u + g, w <- w - lr (g + m u)."""

    state_names = ("momentum",)

    def __init__(self, spec: NesterovSpec) -> None:
        self.m = spec.momentum

    def apply(
        self, w: Tensor, g: Tensor, state: State, lr: float, out_w: Tensor, out_state: State, correction: float = 1.0
    ) -> None:
        u = torch.mul(state["momentum"], self.m, out=out_state["momentum"]).add_(g)
        torch.add(w, g.add(u, alpha=self.m), alpha=-lr, out=out_w)


class Rmsprop(UpdateRule):
    """s <- d s + (1 - d) g^2, w <- w - lr g / (sqrt(s) + epsilon)."""

    state_names = ("square",)

    def __init__(self, spec: RmspropSpec) -> None:
        self.decay, self.epsilon = spec.decay, spec.epsilon

    def apply(
        self, w: Tensor, g: Tensor, state: State, lr: float, out_w: Tensor, out_state: State, correction: float = 1.0
    ) -> None:
        s = torch.mul(state["square"], self.decay, out=out_state["square"]).addcmul_(g, g, value=1 - self.decay)
        torch.addcdiv(w, g, s.sqrt().add_(self.epsilon), value=-lr, out=out_w)


class RmspropInside(UpdateRule):
    """s <- d s + (1 - d) g^2, w <- w - lr g / sqrt(s + epsilon), s = 1 at first: TensorFlow's, which paper 3 used."""

    state_names = ("square",)
    first_value = 1.0

    def __init__(self, spec: RmspropSpec) -> None:
        self.decay, self.epsilon = spec.decay, spec.epsilon

    def apply(
        self, w: Tensor, g: Tensor, state: State, lr: float, out_w: Tensor, out_state: State, correction: float = 1.0
    ) -> None:
        s = torch.mul(state["square"], self.decay, out=out_state["square"]).addcmul_(g, g, value=1 - self.decay)
        torch.addcdiv(w, g, s.add(self.epsilon).sqrt_(), value=-lr, out=out_w)


class Adagrad(UpdateRule):
    """s <- s + g^2, w <- w - lr g / (sqrt(s) + epsilon) (Duchi et al. 2011)."""

    state_names = ("square",)

    def __init__(self, spec: AdagradSpec) -> None:
        self.epsilon = spec.epsilon

    def apply(
        self, w: Tensor, g: Tensor, state: State, lr: float, out_w: Tensor, out_state: State, correction: float = 1.0
    ) -> None:
        s = torch.addcmul(state["square"], g, g, value=1, out=out_state["square"])
        torch.addcdiv(w, g, s.sqrt().add_(self.epsilon), value=-lr, out=out_w)


def build_rule(spec: AnyOptimizer) -> UpdateRule:
    """The rule that a spec's `optimizer` names."""
    match spec:
        case SgdSpec():
            return Sgd(spec)
        case MomentumSpec():
            return Velocity(spec) if spec.equation == 10 else Momentum(spec)
        case NesterovSpec():
            return Nesterov(spec)
        case RmspropSpec():
            return RmspropInside(spec) if spec.form == "tensorflow" else Rmsprop(spec)
        case AdagradSpec():
            return Adagrad(spec)
