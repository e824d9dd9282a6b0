"""The update of a slice in one pass: sum, divide, decay and rule, chunk by chunk, while the chunk is in the cache.

A gradient of many megabytes read once and written once is as fast as the memory; each whole-vector operation more
would cost another trip to it.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from trainers.optim.rules import State, UpdateRule

CHUNK = 128 * 1024
"""Elements a chunk on a CPU: half a dozen such vectors of float32 stay within the shared cache, and the cost of
calling torch (2 us an operation) is spread over enough of them. Measured against 16 K to 512 K elements."""

ALIGN = 64
"""Slices and chunks begin at multiples of this many elements, so that every element goes through the same vector
instructions however the vector is divided, and gets the same bits."""


class Gradient(Protocol):
    """A sum of gradients over a slice, handed out piece by piece."""

    def piece(self, start: int, stop: int) -> Tensor:
        """Elements [start, stop) of the slice, (stop - start,) float32; valid until the next call."""


@dataclass(frozen=True)
class Whole:
    """A gradient that lies ready in memory, (n,) float32."""

    vector: Tensor

    def piece(self, start: int, stop: int) -> Tensor:
        return self.vector[start:stop]


@dataclass(frozen=True)
class Contribution:
    """One update to come: a gradient, what to divide it by, and its learning rate."""

    gradient: Gradient
    divisor: int
    """Examples in the sum where it is a sum over examples; 1 where it is a mean already."""
    lr: float
    decays: int = 1
    """How many times the weight decay counts: the number of minibatches whose gradients were accrued."""
    correction: float = 1.0
    """`momentum_correction` of the learning rate before and `lr`."""


@dataclass(frozen=True)
class Buffers:
    """One whole version of a slice: parameters (n,) and the rule's state beside them."""

    params: Tensor
    state: State

    @property
    def vectors(self) -> list[Tensor]:
        """Parameters, then the state in the order of its names."""
        return [self.params, *(self.state[name] for name in sorted(self.state))]


class SliceUpdate:
    """Applies contributions, one after the other for each element, to a slice of n elements."""

    def __init__(
        self, rule: UpdateRule, weight_decay: float, numel: int, device: torch.device, exempt: Sequence[slice] = ()
    ) -> None:
        """exempt: parts of the slice that do not decay."""
        self.rule = rule
        self.weight_decay = weight_decay
        self.numel = numel
        self.chunk = CHUNK if device.type == "cpu" else max(numel, 1)
        self.scratch = torch.empty(min(self.chunk, max(numel, 1)), device=device)
        starts = range(0, numel, self.chunk)
        self.exempt = {start: within(exempt, slice(start, start + self.chunk)) for start in starts}

    def apply(self, contributions: Sequence[Contribution], current: Buffers, following: Buffers) -> None:
        """Write the version after `current` into `following`. Several contributions in one call give the same bits as
        one call for each."""
        for start in range(0, self.numel, self.chunk):
            stop = min(start + self.chunk, self.numel)
            w, state = current.params[start:stop], {k: s[start:stop] for k, s in current.state.items()}
            out_w, out_state = following.params[start:stop], {k: s[start:stop] for k, s in following.state.items()}
            for contribution in contributions:
                g = self._finished(contribution, w, start, stop)
                self.rule.apply(w, g, state, contribution.lr, out_w, out_state, contribution.correction)
                w, state = out_w, out_state

    def _finished(self, contribution: Contribution, w: Tensor, start: int, stop: int) -> Tensor:
        g = piece = contribution.gradient.piece(start, stop)
        scratch = self.scratch[: stop - start]
        if contribution.divisor != 1:
            g = torch.div(g, contribution.divisor, out=scratch)
        if self.weight_decay:
            g = torch.add(g, w, alpha=self.weight_decay * contribution.decays, out=scratch)
            # Added everywhere, then taken back where it is not wanted: whether an element goes through a vector
            # instruction must not depend on its neighbours, and a division has the same bits either way.
            for part in self.exempt[start]:
                torch.div(piece[part], contribution.divisor, out=scratch[part])
        return g


def initial_state(rule: UpdateRule, like: Tensor) -> State:
    """A rule's state before the first update, beside the slice `like`."""
    return {name: torch.full_like(like, rule.first_value) for name in rule.state_names}


def within(parts: Sequence[slice], cut: slice) -> tuple[slice, ...]:
    """What of the parts lies in `cut`, counted from its start."""
    clipped = ((max(part.start, cut.start), min(part.stop, cut.stop)) for part in parts)
    return tuple(slice(a - cut.start, b - cut.start) for a, b in clipped if a < b)


def aligned(numel: int, to: int = ALIGN) -> int:
    """`numel` rounded up to a multiple of `to`."""
    return -(-numel // to) * to


def spans(numel: int, count: int, to: int = ALIGN) -> list[slice]:
    """[0, numel) in `count` contiguous slices of nearly equal size, cut at multiples of `to`."""
    units = -(-numel // to)
    cuts = [min(units * i // count * to, numel) for i in range(count + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(cuts)]
