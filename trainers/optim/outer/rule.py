"""The outer rules: update rules to which what a worker changed is the gradient."""

import torch
from torch import Tensor

from trainers.optim.buffers import Buffers
from trainers.optim.rule import Step, UpdateRule

PREFIX = "outer-"
"""Before the names of their states in a checkpoint: they are none of an optimizer that steps on gradients."""

SUM, COUNT = "sum", "pushes"
"""Of what was pushed since the last step, and of how many pushes; element by element, so that a checkpoint has them
however it is cut."""


class Outer(UpdateRule):
    """A rule on the mean of so many pushes: d <- mean, w, state <- rule(w, d, state)."""

    def __init__(self, rule: UpdateRule, pushes: int = 1) -> None:
        self.rule, self.pushes = rule, pushes
        self.state_names = tuple(PREFIX + name for name in (*rule.state_names, *([SUM, COUNT] if pushes > 1 else [])))

    def apply(self, current: Buffers, g: Tensor, following: Buffers, step: Step) -> None:
        now, then = self._own(current), self._own(following)
        if self.pushes == 1:
            self.rule.apply(now, g, then, step)
            return
        total = torch.add(now.state[SUM], g, out=then.state[SUM])
        count = torch.add(now.state[COUNT], 1, out=then.state[COUNT])
        is_due = count >= self.pushes
        moved = Buffers(torch.empty_like(g), {name: torch.empty_like(g) for name in self.rule.state_names})
        if is_due.any():
            self.rule.apply(now, total / count, moved, step)
        then.params.copy_(torch.where(is_due, moved.params, now.params))
        for name, vector in moved.state.items():
            then.state[name].copy_(torch.where(is_due, vector, now.state[name]))
        total.masked_fill_(is_due, 0)
        count.masked_fill_(is_due, 0)

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

    state_names = ("momentum", SUM, COUNT)

    def __init__(self, beta: float, n: int, c: float = 0.0) -> None:
        self.beta, self.n, self.c = beta, n, c

    def apply(self, current: Buffers, g: Tensor, following: Buffers, step: Step) -> None:
        now, then = current.state, following.state
        total, count = torch.add(now[SUM], g, out=then[SUM]), torch.add(now[COUNT], 1, out=then[COUNT])
        is_last = count >= self.n
        m = torch.where(is_last, self.beta * now["momentum"] + total / self.n, now["momentum"])
        share = torch.where(is_last, 1 - self.c * self.n + self.c, self.c)
        move = torch.div(g, self.n).add_(share * m, alpha=self.beta)
        torch.add(current.params, move, alpha=-step.lr, out=following.params)
        then["momentum"].copy_(m)
        total.masked_fill_(is_last, 0)
        count.masked_fill_(is_last, 0)
