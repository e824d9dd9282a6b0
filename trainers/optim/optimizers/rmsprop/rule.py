"""The update rule of RMSProp, in PyTorch's form and in TensorFlow's."""

import torch
from torch import Tensor

from trainers.optim.buffers import Buffers
from trainers.optim.rule import Step, UpdateRule, spare


class Rmsprop(UpdateRule):
    """s <- d s + (1 - d) g^2, w <- w - lr g / (sqrt(s) + epsilon)."""

    state_names = ("square",)

    def __init__(self, decay: float, epsilon: float) -> None:
        self.decay, self.epsilon = decay, epsilon

    def apply(self, current: Buffers, g: Tensor, following: Buffers, step: Step) -> None:
        s = self._mean_square(current, g, following)
        root = torch.sqrt(s, out=spare(current, following)).add_(self.epsilon)
        torch.addcdiv(current.params, g, root, value=-step.lr, out=following.params)

    def _mean_square(self, current: Buffers, g: Tensor, following: Buffers) -> Tensor:
        """s <- d s + (1 - d) g^2, (n,)."""
        s = torch.mul(current.state["square"], self.decay, out=following.state["square"])
        return s.addcmul_(g, g, value=1 - self.decay)


class TensorFlowRmsprop(Rmsprop):
    """s <- d s + (1 - d) g^2, w <- w - lr g / sqrt(s + epsilon), s = 1 at first: TensorFlow's, which paper 3 used."""

    first_value = 1.0

    def apply(self, current: Buffers, g: Tensor, following: Buffers, step: Step) -> None:
        s = self._mean_square(current, g, following)
        root = torch.add(s, self.epsilon, out=spare(current, following)).sqrt_()
        torch.addcdiv(current.params, g, root, value=-step.lr, out=following.params)
