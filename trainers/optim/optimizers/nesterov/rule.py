"""The update rule of SGD with Nesterov's momentum."""

import torch
from torch import Tensor

from trainers.optim.buffers import Buffers
from trainers.optim.rule import OnePass, Step, UpdateRule, spare


class Nesterov(UpdateRule):
    """u <- m u + g, w <- w - lr (g + m u)."""

    state_names = ("momentum",)

    def __init__(self, m: float) -> None:
        self.m = m

    def apply(self, current: Buffers, g: Tensor, following: Buffers, step: Step) -> None:
        u = torch.mul(current.state["momentum"], self.m, out=following.state["momentum"]).add_(g)
        ahead = torch.add(g, u, alpha=self.m, out=spare(current, following))
        torch.add(current.params, ahead, alpha=-step.lr, out=following.params)

    def in_one_pass(self, device: torch.device) -> OnePass:
        if device.type == "cuda":
            from trainers.optim.compiled_on_gpu import CompiledOnGpu
            from trainers.optim.optimizers.nesterov import gpu_kernel

            return CompiledOnGpu(gpu_kernel.nesterov, self.state_names, lambda step, _: (step.lr, self.m))
        from trainers.optim.compiled import Compiled  # Numba takes a third of a second to import
        from trainers.optim.optimizers.nesterov import kernel

        return Compiled(kernel.nesterov, self.state_names, lambda step: (step.lr, self.m))
