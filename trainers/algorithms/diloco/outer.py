"""The outer optimizer: what it makes of the mean of what the virtual workers changed."""

from __future__ import annotations

import torch
from torch import Tensor

from trainers.algorithms.diloco.config import START, VELOCITY, Outer
from trainers.optim.buffers import Buffers, State

WHOLE = slice(None)


class OuterStep:
    """theta, the parameters that all go on from, and the velocity; (P,) each. Steps may be of a part of them."""

    def __init__(self, config: Outer, start: Buffers, device: torch.device) -> None:
        self.config = config
        self.theta = start.state.get(START, start.params).to(device, copy=True)
        self.velocity: Tensor | None = None
        if config.momentum:
            self.velocity = torch.zeros_like(self.theta)
            if VELOCITY in start.state:
                self.velocity.copy_(start.state[VELOCITY])

    @property
    def state(self) -> State:
        """What a checkpoint keeps of the optimizer."""
        return {} if self.velocity is None else {VELOCITY: self.velocity}

    def changed(self, x: Tensor, into: Tensor, part: slice = WHOLE) -> Tensor:
        """What a worker that came to x (n,) has changed of the part, start minus end; without an outer step x itself,
        to the bit, as theta - (theta - x) would not be."""
        return into.copy_(x) if self.config.is_none else torch.sub(self.theta[part], x, out=into)

    def after(self, d: Tensor, part: slice = WHOLE) -> tuple[Tensor, Tensor | None]:
        """Parameters (n,) and velocity (n,) of the part after a step by d, the mean of `changed`, in new memory."""
        outer, theta = self.config, self.theta[part]
        if outer.is_none:
            return d.clone(), None
        if self.velocity is None:
            return torch.sub(theta, d, alpha=outer.lr), None
        velocity = (self.velocity[part] * outer.momentum).add_(d)
        step = torch.add(d, velocity, alpha=outer.momentum) if outer.nesterov else velocity
        return torch.sub(theta, step, alpha=outer.lr), velocity

    def take(self, d: Tensor, part: slice = WHOLE) -> Tensor:
        """Make that step. Returns the part of theta, (n,)."""
        theta, velocity = self.after(d, part)
        self.theta = _with(self.theta, part, theta)
        if self.velocity is not None and velocity is not None:
            self.velocity = _with(self.velocity, part, velocity)
        return theta


def _with(vector: Tensor, part: slice, new: Tensor) -> Tensor:
    """The vector with a new part, in new memory: whoever has gathered the old one may still read it."""
    if part == WHOLE:
        return new
    vector = vector.clone()
    vector[part] = new
    return vector
