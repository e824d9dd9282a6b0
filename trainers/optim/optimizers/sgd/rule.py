"""The update rule of plain SGD."""

import torch
from torch import Tensor

from trainers.optim.buffers import Buffers
from trainers.optim.rule import UpdateRule


class Sgd(UpdateRule):
    """w <- w - lr g."""

    def apply(self, current: Buffers, g: Tensor, following: Buffers, lr: float, correction: float = 1.0) -> None:
        torch.add(current.params, g, alpha=-lr, out=following.params)
