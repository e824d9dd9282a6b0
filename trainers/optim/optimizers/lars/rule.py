"""The update rule of LARS (You et al. 2017, "Large batch training of convolutional networks")."""

import torch
from torch import Tensor

from trainers.optim.buffers import Buffers
from trainers.optim.rule import ParameterRule, ParameterStep, norm


class Lars(ParameterRule):
    """v <- m v + lr r (g + decay w), w <- w - v, with r = trust |w| / (|g| + decay |w| + epsilon) (algorithm 1).

    As in the implementations of MLPerf and TensorFlow, biases and the parameters of normalisations have r = 1 (the
    spec's `no_decay`), and so has a parameter while it or its gradient is 0.
    """

    state_names = ("velocity",)

    def __init__(self, m: float, trust: float, epsilon: float) -> None:
        self.m, self.trust, self.epsilon = m, trust, epsilon

    def apply(self, current: Buffers, g: Tensor, following: Buffers, step: ParameterStep) -> None:
        w, v = current.params, following.state["velocity"]
        torch.mul(current.state["velocity"], self.m, out=v)
        direction = torch.add(g, w, alpha=step.decay) if step.decay else g
        if step.is_exempt:
            v.add_(direction, alpha=step.lr)
        else:
            v.add_(direction * (step.lr * self._ratio(norm(w), norm(g), step.decay)))
        torch.sub(w, v, out=following.params)

    def _ratio(self, of_w: Tensor, of_g: Tensor, decay: float) -> Tensor:
        adapted = self.trust * of_w / (of_g + decay * of_w + self.epsilon)
        return torch.where((of_w > 0) & (of_g > 0), adapted, torch.ones_like(adapted))
