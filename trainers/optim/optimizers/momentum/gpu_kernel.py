"""The two forms of momentum in one pass, compiled by Triton for GPUs."""

import triton
import triton.language as tl

from trainers.optim.gpu_kernel import gradient


@triton.jit
def momentum(
    total, w, u, w_next, u_next, exempt, numel, inverse, scale,
    decay, rate, m, DECAYS: tl.constexpr, EXEMPTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """u' = m u + g, w' = w - rate u'."""
    at, there, _, before, g = gradient(
        total, w, exempt, numel, inverse, scale, decay, DECAYS, EXEMPTS, BLOCK
    )  # fmt: skip
    step = m * tl.load(u + at, there) + g
    tl.store(u_next + at, step, there)
    tl.store(w_next + at, tl.fma(step, -rate, before), there)


@triton.jit
def velocity(
    total, w, u, w_next, u_next, exempt, numel, inverse, scale,
    decay, rate, m, DECAYS: tl.constexpr, EXEMPTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """v' = m v + rate g, w' = w - v'; m is corrected."""
    at, there, _, before, g = gradient(
        total, w, exempt, numel, inverse, scale, decay, DECAYS, EXEMPTS, BLOCK
    )  # fmt: skip
    step = tl.fma(g, rate, m * tl.load(u + at, there))
    tl.store(u_next + at, step, there)
    tl.store(w_next + at, before - step, there)
