"""The update rule of AdaGrad."""

import torch
from torch import Tensor

from trainers.optim.buffers import Buffers
from trainers.optim.rule import Step, UpdateRule, spare


class Adagrad(UpdateRule):
    """s <- s + g^2, w <- w - lr g / (sqrt(s) + epsilon) (Duchi et al. 2011)."""

    state_names = ("square",)

    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon

    def apply(self, current: Buffers, g: Tensor, following: Buffers, step: Step) -> None:
        s = torch.addcmul(current.state["square"], g, g, value=1, out=following.state["square"])
        root = torch.sqrt(s, out=spare(current, following)).add_(self.epsilon)
        torch.addcdiv(current.params, g, root, value=-step.lr, out=following.params)
