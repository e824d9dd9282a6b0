"""The two forms of SGD with momentum in paper 4, section 3."""

import torch
from torch import Tensor

from trainers.optim.buffers import Buffers
from trainers.optim.rule import OnePass, Step, UpdateRule


class Momentum(UpdateRule):
    """u <- m u + g, w <- w - lr u (paper 4, equation 9)."""

    state_names = ("momentum",)

    def __init__(self, m: float) -> None:
        self.m = m

    def apply(self, current: Buffers, g: Tensor, following: Buffers, step: Step) -> None:
        u = torch.mul(current.state["momentum"], self.m, out=following.state["momentum"]).add_(g)
        torch.add(current.params, u, alpha=-step.lr, out=following.params)

    def in_one_pass(self, device: torch.device) -> OnePass:
        if device.type == "cuda":
            from trainers.optim.compiled_on_gpu import CompiledOnGpu
            from trainers.optim.optimizers.momentum import gpu_kernel

            return CompiledOnGpu(gpu_kernel.momentum, self.state_names, lambda step, _: (step.lr, self.m))
        from trainers.optim.compiled import Compiled  # Numba takes a third of a second to import
        from trainers.optim.optimizers.momentum import kernel

        return Compiled(kernel.momentum, self.state_names, lambda step: (step.lr, self.m))


class Velocity(UpdateRule):
    """v <- m (lr / rate before) v + lr g, w <- w - v (paper 4, equation 10; the quotient is momentum correction)."""

    state_names = ("velocity",)

    def __init__(self, m: float, corrects: bool) -> None:
        """corrects: whether v is multiplied by the quotient of the rates when the learning rate changes."""
        self.m, self.corrects = m, corrects
        self.rate_names = self.state_names if corrects else ()

    def apply(self, current: Buffers, g: Tensor, following: Buffers, step: Step) -> None:
        v = torch.mul(current.state["velocity"], self._m(step), out=following.state["velocity"]).add_(g, alpha=step.lr)
        torch.sub(current.params, v, out=following.params)

    def in_one_pass(self, device: torch.device) -> OnePass:
        if device.type == "cuda":
            from trainers.optim.compiled_on_gpu import CompiledOnGpu
            from trainers.optim.optimizers.momentum import gpu_kernel

            return CompiledOnGpu(gpu_kernel.velocity, self.state_names, lambda step, _: (step.lr, self._m(step)))
        from trainers.optim.compiled import Compiled  # Numba takes a third of a second to import
        from trainers.optim.optimizers.momentum import kernel

        return Compiled(kernel.velocity, self.state_names, lambda step: (step.lr, self._m(step)))

    def _m(self, step: Step) -> float:
        return self.m * step.correction if self.corrects else self.m
