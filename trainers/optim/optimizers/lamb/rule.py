"""The update rule of LAMB (You et al. 2020, "Large batch optimization for deep learning")."""

import torch
from torch import Tensor

from trainers.optim.buffers import Buffers
from trainers.optim.rule import ParameterRule, ParameterStep, norm


class Lamb(ParameterRule):
    """m <- b1 m + (1 - b1) g, s <- b2 s + (1 - b2) g^2, u = m' / (sqrt(s') + epsilon) + decay w, w <- w - lr r u, with
    m' = m / (1 - b1^t), s' = s / (1 - b2^t) and r = |w| / |u| (algorithm 2, phi the identity).

    As in the authors' implementation, biases and the parameters of normalisations have r = 1 (the spec's `no_decay`),
    and so has a parameter while it or u is 0.
    """

    state_names = ("exp_avg", "exp_avg_sq", "step")

    def __init__(self, betas: tuple[float, float], epsilon: float) -> None:
        self.betas, self.epsilon = betas, epsilon

    def apply(self, current: Buffers, g: Tensor, following: Buffers, step: ParameterStep) -> None:
        (b1, b2), old, new, w = self.betas, current.state, following.state, current.params
        t = torch.add(old["step"], 1, out=new["step"])[0].double()
        m = torch.lerp(old["exp_avg"], g, 1 - b1, out=new["exp_avg"])
        s = torch.mul(old["exp_avg_sq"], b2, out=new["exp_avg_sq"]).addcmul_(g, g, value=1 - b2)
        root = (s / (1 - b2**t)).sqrt_().add_(self.epsilon)
        u = (m / (1 - b1**t)).div_(root)
        if step.decay:
            u.add_(w, alpha=step.decay)
        if not step.is_exempt:
            of_w, of_u = norm(w), norm(u)
            u.mul_(torch.where((of_w > 0) & (of_u > 0), of_w / of_u, torch.ones_like(of_w)))
        torch.add(w, u, alpha=-step.lr, out=following.params)
