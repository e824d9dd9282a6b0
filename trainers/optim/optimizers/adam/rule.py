"""The update rule of Adam, with the operations of torch.optim and in their order."""

import math

import torch
from torch import Tensor

from trainers.optim.buffers import Buffers
from trainers.optim.rule import UpdateRule, spare


class Adam(UpdateRule):
    """m <- b1 m + (1 - b1) g, s <- b2 s + (1 - b2) g^2, w <- w - lr m' / (sqrt(s') + epsilon), where
    m' = m / (1 - b1^t) and s' = s / (1 - b2^t) (Kingma and Ba 2015).

    t, the number of the update, stands beside each element: so it moves with a slice, wherever that goes.
    """

    state_names = ("exp_avg", "exp_avg_sq", "step")

    def __init__(self, betas: tuple[float, float], epsilon: float) -> None:
        self.betas, self.epsilon = betas, epsilon

    def apply(self, current: Buffers, g: Tensor, following: Buffers, lr: float, correction: float = 1.0) -> None:
        (b1, b2), old, new = self.betas, current.state, following.state
        step = torch.add(old["step"], 1, out=new["step"])
        m = torch.lerp(old["exp_avg"], g, 1 - b1, out=new["exp_avg"])
        s = torch.mul(old["exp_avg_sq"], b2, out=new["exp_avg_sq"]).addcmul_(g, g, value=1 - b2)
        if step.is_cuda:  # nothing waits for the device
            self._update_on_device(current.params, m, s, step.max(), following.params, lr)
            return
        t = float(step.amax()) if step.numel() else 1.0  # not the first: between two parameters there may be zeros
        root = torch.sqrt(s, out=spare(current, following)).div_(math.sqrt(1 - b2**t)).add_(self.epsilon)
        torch.addcdiv(current.params, m, root, value=-(lr / (1 - b1**t)), out=following.params)

    def _update_on_device(self, w: Tensor, m: Tensor, s: Tensor, t: Tensor, into: Tensor, lr: float) -> None:
        """The same with t, (), left where it is."""
        b1, b2 = self.betas
        root = s.sqrt().div_((1 - b2**t).sqrt()).add_(self.epsilon)
        torch.sub(w, torch.div(m, root).mul_(lr / (1 - b1**t)), out=into)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

    decouples_decay = True
