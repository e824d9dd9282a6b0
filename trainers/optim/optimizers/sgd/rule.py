"""The update rule of plain SGD."""

import torch
from torch import Tensor

from trainers.optim.buffers import Buffers
from trainers.optim.rule import OnePass, Step, UpdateRule


class Sgd(UpdateRule):
    """w <- w - lr g."""

    def apply(self, current: Buffers, g: Tensor, following: Buffers, step: Step) -> None:
        torch.add(current.params, g, alpha=-step.lr, out=following.params)

    def in_one_pass(self) -> OnePass:
        from trainers.optim.compiled import Compiled  # Numba takes a third of a second to import
        from trainers.optim.optimizers.sgd import kernel

        return Compiled(kernel.sgd, self.state_names, lambda step: (step.lr,))
