"""The outer rules: update rules to which what a worker changed is the gradient."""

from dataclasses import replace

import torch
from torch import Tensor

from trainers.optim.buffers import Buffers
from trainers.optim.rule import Step, UpdateRule, spare

PREFIX = "outer-"
"""Before the names of their states in a checkpoint: they are none of an optimizer that steps on gradients."""

SUM = "sum"


class Outer(UpdateRule):
    """A rule on the mean of so many pushes: d <- mean, w, state <- rule(w, d, state)."""

    def __init__(self, rule: UpdateRule, pushes: int = 1) -> None:
        self.rule, self.pushes = rule, pushes
        self.state_names = tuple(PREFIX + name for name in (*rule.state_names, *([SUM] if pushes > 1 else [])))

    def apply(self, current: Buffers, g: Tensor, following: Buffers, step: Step) -> None:
        now, then = self._own(current), self._own(following)
        if self.pushes == 1:
            self.rule.apply(now, g, then, step)
            return
        total = torch.add(now.state[SUM], g, out=then.state[SUM])
        if (step.number + 1) % self.pushes == 0:
            self.rule.apply(now, total / self.pushes, then, replace(step, number=step.number // self.pushes))
            total.zero_()
        else:
            then.params.copy_(now.params)
            for name in self.rule.state_names:
                then.state[name].copy_(now.state[name])

    def _own(self, version: Buffers) -> Buffers:
        """The version with the states as the rule calls them."""
        return Buffers(version.params, {name.removeprefix(PREFIX): version.state[name] for name in self.state_names})


class Polyak(UpdateRule):
    """v <- m v + d, w <- w - lr v."""

    state_names = ("momentum",)

    def __init__(self, m: float) -> None:
        self.m = m

    def apply(self, current: Buffers, g: Tensor, following: Buffers, step: Step) -> None:
        v = torch.mul(current.state["momentum"], self.m, out=following.state["momentum"]).add_(g)
        torch.add(current.params, v, alpha=-step.lr, out=following.params)


class DelayedNesterov(UpdateRule):
    """The gradients take effect at once, and the momentum of N of them with the last one.

    Source: Liu et al. 2024, "Asynchronous local-SGD training for language modeling", algorithm 3; Delta is `total`:

    Delta <- Delta + g
    if t + 1 is a multiple of N:
        m <- beta m + Delta / N; theta <- theta - eps ((1 - c N + c) beta m + g / N); Delta <- 0
    else: theta <- theta - eps (c beta m + g / N)
    """

    state_names = ("momentum", SUM)

    def __init__(self, beta: float, n: int, c: float = 0.0) -> None:
        self.beta, self.n, self.c = beta, n, c

    def apply(self, current: Buffers, g: Tensor, following: Buffers, step: Step) -> None:
        m, total = following.state["momentum"], following.state[SUM]
        torch.add(current.state[SUM], g, out=total)
        if (step.number + 1) % self.n == 0:
            torch.mul(current.state["momentum"], self.beta, out=m).add_(total, alpha=1 / self.n)
            share = 1 - self.c * self.n + self.c
            total.zero_()
        else:
            m.copy_(current.state["momentum"])
            share = self.c
        move = torch.div(g, self.n, out=spare(current, following)).add_(m, alpha=share * self.beta)
        torch.add(current.params, move, alpha=-step.lr, out=following.params)
