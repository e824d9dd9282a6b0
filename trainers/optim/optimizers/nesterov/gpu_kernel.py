"""Nesterov's momentum in one pass, compiled by Triton for GPUs."""

import triton
import triton.language as tl

from trainers.optim.gpu_kernel import mean, places


@triton.jit
def nesterov(
    total, w, u, w_next, u_next, exempt, numel, inverse, scale,
    decay, rate, m, DECAYS: tl.constexpr, EXEMPTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """u' = m u + g, w' = w - rate (g + m u')."""
    at, there, is_exempt = places(numel, exempt, EXEMPTS, BLOCK)
    before = tl.load(w + at, there)
    g = mean(tl.load(total + at, there), before, is_exempt, inverse, scale, decay, DECAYS)
    step = m * tl.load(u + at, there) + g
    tl.store(u_next + at, step, there)
    tl.store(w_next + at, tl.fma(tl.fma(step, m, g), -rate, before), there)
