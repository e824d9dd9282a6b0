"""The update rule of plain SGD."""

import torch
from torch import Tensor

from trainers.optim.buffers import Buffers
from trainers.optim.rule import OnePass, Step, UpdateRule


class Sgd(UpdateRule):
    """w <- w - lr g."""

    def apply(self, current: Buffers, g: Tensor, following: Buffers, step: Step) -> None:
        torch.add(current.params, g, alpha=-step.lr, out=following.params)

    def in_one_pass(self, device: torch.device) -> OnePass:
        if device.type == "cuda":
            from trainers.optim.compiled_on_gpu import CompiledOnGpu
            from trainers.optim.optimizers.sgd import gpu_kernel

            return CompiledOnGpu(gpu_kernel.sgd, self.state_names, lambda step, _: (step.lr,))
        from trainers.optim.compiled import Compiled  # Numba takes a third of a second to import
        from trainers.optim.optimizers.sgd import kernel

        return Compiled(kernel.sgd, self.state_names, lambda step: (step.lr,))
