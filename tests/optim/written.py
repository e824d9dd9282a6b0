"""Update rules that torch.optim does not have, written out as the papers have them; and its fused ones, made even."""

from collections.abc import Callable

import torch
from torch import Tensor

Step = Callable[[Tensor, Tensor, dict[str, Tensor], dict], None]  # parameter, gradient, its state, its group


class Written(torch.optim.Optimizer):
    """An optimiser of torch's kind around a written step; weight decay is part of the gradient."""

    def __init__(self, params: object, lr: float, weight_decay: float, step: Step, first: float, **options: object):
        self.written, self.first = step, first
        super().__init__(params, {"lr": lr, "before": 0.0, "weight_decay": weight_decay, **options})  # type: ignore[arg-type]

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                state.setdefault("s", torch.full_like(p, self.first, memory_format=torch.preserve_format))
                g = p.grad.add(p, alpha=group["weight_decay"]) if group["weight_decay"] else p.grad
                self.written(p, g, state, group)
            group["before"] = group["lr"]


class Fused(torch.optim.Optimizer):
    """An optimiser of torch.optim with `fused=True`, with zeros behind each parameter: the elements behind the last
    whole vector instruction have an order of operations of their own there, and so none of the parameter's are."""

    def __init__(self, params: object, kind: type[torch.optim.Optimizer], **options: object):
        super().__init__(params, options)  # type: ignore[arg-type]
        padded = [group | {"params": [_padded(p) for p in group["params"]]} for group in self.param_groups]
        self.inner = kind(padded, fused=True)  # type: ignore[call-arg]

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for mine, theirs in zip(self.param_groups, self.inner.param_groups, strict=True):
            theirs |= {name: value for name, value in mine.items() if name != "params"}
            for p, twin in zip(mine["params"], theirs["params"], strict=True):
                twin[: p.numel()] = p.flatten()
                twin.grad = None if p.grad is None else _padded(p.grad)
        self.inner.step()
        for mine, theirs in zip(self.param_groups, self.inner.param_groups, strict=True):
            for p, twin in zip(mine["params"], theirs["params"], strict=True):
                p.copy_(twin[: p.numel()].view_as(p))


def _padded(x: Tensor) -> Tensor:
    return torch.nn.functional.pad(x.detach().flatten(), (0, 64))


def equation_10(p: Tensor, g: Tensor, state: dict[str, Tensor], group: dict) -> None:
    """v <- m (lr / rate before) v + lr g, w <- w - v (paper 4, section 3)."""
    correction = group["lr"] / group["before"] if group["before"] and group["corrects"] else 1.0
    v = state["s"].mul_(group["momentum"] * correction).add_(g, alpha=group["lr"])
    p.sub_(v)


def tensorflow_rmsprop(p: Tensor, g: Tensor, state: dict[str, Tensor], group: dict) -> None:
    """ms <- d ms + (1 - d) g^2, w <- w - lr g / sqrt(ms + epsilon)."""
    d = group["decay"]
    ms = state["s"].mul_(d).addcmul_(g, g, value=1 - d)
    p.addcdiv_(g, (ms + group["epsilon"]).sqrt(), value=-group["lr"])


def lion(p: Tensor, g: Tensor, state: dict[str, Tensor], group: dict) -> None:
    """w <- (1 - lr decay) w - lr sign(b1 m + (1 - b1) g), m <- b2 m + (1 - b2) g (Chen et al. 2023, algorithm 2)."""
    b1, b2 = group["betas"]
    direction = state["s"].lerp(g, 1 - b1).sign()
    p.mul_(1 - group["lr"] * group["decoupled"]).sub_(direction, alpha=group["lr"])
    state["s"].lerp_(g, 1 - b2)


def lars(p: Tensor, g: Tensor, state: dict[str, Tensor], group: dict) -> None:
    """v <- m v + lr r (g + decay w), w <- w - v, r = trust |w| / (|g| + decay |w|) (You et al. 2017, algorithm 1)."""
    decay, of_w, of_g = group["own_decay"], float(p.double().norm()), float(g.double().norm())
    adapts = of_w > 0 and of_g > 0 and not group["exempt"]
    r = group["trust"] * of_w / (of_g + decay * of_w + group["eps"]) if adapts else 1.0
    v = state["s"].mul_(group["momentum"]).add_(g + decay * p, alpha=group["lr"] * r)
    p.sub_(v)


def lamb(p: Tensor, g: Tensor, state: dict[str, Tensor], group: dict) -> None:
    """You et al. 2020, algorithm 2, with phi the identity."""
    b1, b2 = group["betas"]
    t = state["t"] = state.get("t", 0) + 1  # type: ignore[assignment, operator]
    m = state["m"] = b1 * state.get("m", 0) + (1 - b1) * g
    s = state["v"] = b2 * state.get("v", 0) + (1 - b2) * g * g
    u = (m / (1 - b1**t)) / ((s / (1 - b2**t)).sqrt() + group["eps"]) + group["own_decay"] * p
    of_w, of_u = float(p.double().norm()), float(u.double().norm())
    r = of_w / of_u if of_w > 0 and of_u > 0 and not group["exempt"] else 1.0
    p.sub_(u, alpha=group["lr"] * r)


def muon(p: Tensor, g: Tensor, state: dict[str, Tensor], group: dict) -> None:
    """Jordan et al. 2024: of a matrix its orthogonalised momentum, with Nesterov's; of all else AdamW's step."""
    if not any(p is matrix for matrix in group["hidden"]):
        adamw(p, g, state, group | {"lr": group["lr"] * group["adamw_lr"]})
        return
    p.mul_(1 - group["lr"] * group["own_decay"])
    u = state["s"].mul_(0.95).add_(g, alpha=0.05)
    x = (0.05 * g + 0.95 * u).flatten(1)
    rows, columns = x.shape
    x = x / x.norm()
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x - 4.7750 * a @ x + 2.0315 * a @ a @ x
    p.sub_(x.view_as(p), alpha=group["lr"] * max(1, rows / columns) ** 0.5)


def adamw(p: Tensor, g: Tensor, state: dict[str, Tensor], group: dict) -> None:
    """Loshchilov and Hutter 2019, algorithm 2."""
    b1, b2 = group["betas"]
    t = state["t"] = state.get("t", 0) + 1  # type: ignore[assignment, operator]
    m = state["m"] = b1 * state.get("m", 0) + (1 - b1) * g
    s = state["v"] = b2 * state.get("v", 0) + (1 - b2) * g * g
    p.mul_(1 - group["lr"] * group["own_decay"])
    p.sub_((m / (1 - b1**t)) / ((s / (1 - b2**t)).sqrt() + group["eps"]), alpha=group["lr"])
