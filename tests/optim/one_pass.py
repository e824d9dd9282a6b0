"""A rule in one pass beside the same by torch's operations."""

from collections.abc import Sequence

import torch
from torch import Tensor

from trainers.optim.buffers import Buffers
from trainers.optim.gradient import TensorGradient
from trainers.optim.optimizer import Optimizer
from trainers.optim.rule import initial_state
from trainers.optim.update import Contribution, SliceUpdate
from trainers.spec import AdamSpec, AdamWSpec, AnyOptimizer, MomentumSpec, NesterovSpec, SgdSpec

RULES = (SgdSpec(), MomentumSpec(), MomentumSpec(equation=10), NesterovSpec(momentum=0.8))
"""Whose bits are those of the operations."""
NEAR = (AdamSpec(), AdamWSpec(), AdamSpec(betas=(0.0, 0.9)))
"""On a GPU: whose rounding is that of the CPU."""
NUMBERS = (0.0, -0.0, 1e-45, 1e-38, 3e38, float("inf"), float("nan"))
"""Whose bits are easily lost."""


def updated(
    spec: AnyOptimizer, device: torch.device, *, passes: bool, numel: int = 3000, in_place: bool = False,
    divisors: Sequence[float] = (7.0, 64.0), scale: float = 1.0, decay: float = 0.1,
    exempt: Sequence[slice] = (slice(16, 48), slice(2048, 2064)), special: bool = True, lr: float = 0.1, seed: int = 0,
) -> list[Tensor]:  # fmt: skip
    """The vectors (n,) of both versions after some updates. passes: whether in one pass, not by operations."""
    rule = spec.build()
    vectors = torch.randn(3 + len(divisors), numel, generator=torch.Generator().manual_seed(seed))
    if special:
        vectors[:, : len(NUMBERS)] = torch.tensor(NUMBERS)[:numel]
    w, u, after, *gradients = vectors.to(device)
    state = dict.fromkeys(rule.state_names, u) if len(rule.state_names) < 2 else initial_state(rule, w)
    current = Buffers(w, state)
    following = current if in_place else Buffers(after, initial_state(rule, after))
    update = SliceUpdate(Optimizer(rule, decay, tuple(exempt)), numel, device)
    assert update.in_one_pass or not numel or "step" in rule.state_names
    if not passes:
        leave_to_operations(update)
    both = zip(gradients, divisors, strict=True)
    update.apply(
        [Contribution(TensorGradient(g), d, lr, scale=scale, decays=2, correction=0.5) for g, d in both],
        current,
        following,
    )
    return [*current.vectors, *following.vectors]


def leave_to_operations(update: SliceUpdate) -> None:
    """Have an update made by torch's operations, as where no rule is compiled."""
    update.in_one_pass.clear()
    update.uncut.clear()
