"""The update rule of Adam, with the operations of torch.optim and in their order."""

import math

import numpy as np
import torch
from torch import Tensor

from trainers.optim.buffers import Buffers
from trainers.optim.rule import Mean, OnePass, Step, UpdateRule


class Adam(UpdateRule):
    """m <- b1 m + (1 - b1) g, s <- b2 s + (1 - b2) g^2, w <- w - lr m' / (sqrt(s') + epsilon), where
    m' = m / (1 - b1^t) and s' = s / (1 - b2^t) (Kingma and Ba 2015).

    t, the number of the update, stands beside each element: so it moves with a slice, wherever that goes.
    """

    state_names = ("exp_avg", "exp_avg_sq", "step")

    def __init__(self, betas: tuple[float, float], epsilon: float) -> None:
        from trainers.optim.optimizers.adam import kernel  # Numba takes half a second to import: only who needs it does

        self.betas, self.epsilon, self.kernel = betas, epsilon, kernel.adam

    def apply(self, current: Buffers, g: Tensor, following: Buffers, step: Step) -> None:
        (self._on_device if g.is_cuda else self._on_cpu)(current, g, following, step)

    def in_one_pass(self, device: torch.device) -> OnePass | None:
        if device.type == "cpu":
            return None
        from trainers.optim.compiled_on_gpu import CompiledOnGpu
        from trainers.optim.optimizers.adam import gpu_kernel

        logs = {f"LOG_B{i}": math.log(b) if b else -math.inf for i, b in enumerate(self.betas, 1)}
        return CompiledOnGpu(gpu_kernel.adam, self.state_names, self._constants, self.decouples_decay, **logs)

    def _constants(self, step: Step, of: Mean) -> tuple[float, ...]:
        """Of the kernel for GPUs."""
        (b1, b2), keep = self.betas, 1 - step.lr * of.decay if self.decouples_decay else 1.0
        return keep, step.lr, 1 - b1, b2, 1 - b2, self.epsilon

    def _on_cpu(self, current: Buffers, g: Tensor, following: Buffers, step: Step) -> None:
        (b1, b2), before = self.betas, current.state["step"].numpy()
        t = float(before[0] or before.max()) + 1 if before.size else 1.0  # between two parameters there may be zeros
        bounds = [0, *(edge for part in step.exempt for edge in (part.start, part.stop)), before.size]
        factors = [step.keep, 1 - b1, b2, 1 - b2, step.lr / (1 - b1**t), math.sqrt(1 - b2**t), self.epsilon, 1]
        of_both = [vector.numpy() for version in (current, following) for vector in _vectors(version)]
        in_place = current.place == following.place
        self.kernel(g.numpy(), *of_both, np.array(bounds), *np.array(factors, np.float32), in_place)

    def _on_device(self, current: Buffers, g: Tensor, following: Buffers, step: Step) -> None:
        """The same by torch's operations; t, (), stays where it is, so that nothing waits for the device."""
        (b1, b2), (_, m, s, steps), (into, *new) = self.betas, _vectors(current), _vectors(following)
        m = torch.lerp(m, g, 1 - b1, out=new[0])
        s = torch.mul(s, b2, out=new[1]).addcmul_(g, g, value=1 - b2)
        t = torch.add(steps, 1, out=new[2]).max()
        root = s.sqrt().div_((1 - b2**t).sqrt()).add_(self.epsilon)
        torch.sub(step.decayed(current.params), torch.div(m, root).mul_(step.lr / (1 - b1**t)), out=into)


def _vectors(version: Buffers) -> list[Tensor]:
    return [version.params, *(version.state[name] for name in Adam.state_names)]


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

    decouples_decay = True
