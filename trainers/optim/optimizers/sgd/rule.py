"""The update rule of plain SGD."""

import torch
from torch import Tensor

from trainers.optim.buffers import Buffers
from trainers.optim.rule import Step, UpdateRule


class Sgd(UpdateRule):
    """w <- w - lr g."""

    def apply(self, current: Buffers, g: Tensor, following: Buffers, step: Step) -> None:
        torch.add(current.params, g, alpha=-step.lr, out=following.params)
