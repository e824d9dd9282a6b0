"""The update rule of Lion (Chen et al. 2023, "Symbolic discovery of optimization algorithms")."""

import torch
from torch import Tensor

from trainers.optim.buffers import Buffers
from trainers.optim.rule import Step, UpdateRule, spare


class Lion(UpdateRule):
    """w <- w - lr sign(b1 m + (1 - b1) g), m <- b2 m + (1 - b2) g (Chen et al. 2023, algorithm 2)."""

    state_names = ("exp_avg",)
    decouples_decay = True

    def __init__(self, betas: tuple[float, float]) -> None:
        self.betas = betas

    def apply(self, current: Buffers, g: Tensor, following: Buffers, step: Step) -> None:
        (b1, b2), m = self.betas, current.state["exp_avg"]
        direction = torch.lerp(m, g, 1 - b1, out=spare(current, following)).sign_()
        torch.lerp(m, g, 1 - b2, out=following.state["exp_avg"])
        torch.add(step.decayed(current.params), direction, alpha=-step.lr, out=following.params)
