"""Nesterov's momentum in one pass, compiled by Triton for GPUs."""

import triton
import triton.language as tl

from trainers.optim.gpu_kernel import gradient


@triton.jit
def nesterov(
    total, w, u, w_next, u_next, exempt, numel, inverse, scale,
    decay, rate, m, DECAYS: tl.constexpr, EXEMPTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """u' = m u + g, w' = w - rate (g + m u')."""
    at, there, _, before, g = gradient(
        total, w, exempt, numel, inverse, scale, decay, DECAYS, EXEMPTS, BLOCK
    )  # fmt: skip
    step = m * tl.load(u + at, there) + g
    tl.store(u_next + at, step, there)
    tl.store(w_next + at, tl.fma(tl.fma(step, m, g), -rate, before), there)
