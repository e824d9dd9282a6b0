"""The two forms of momentum in one pass, compiled by Triton for GPUs."""

import triton
import triton.language as tl

from trainers.optim.gpu_kernel import mean, places


@triton.jit
def momentum(
    total, w, u, w_next, u_next, exempt, numel, inverse, scale,
    decay, rate, m, DECAYS: tl.constexpr, EXEMPTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """u' = m u + g, w' = w - rate u'."""
    at, there, is_exempt = places(numel, exempt, EXEMPTS, BLOCK)
    before = tl.load(w + at, there)
    g = mean(tl.load(total + at, there), before, is_exempt, inverse, scale, decay, DECAYS)
    step = m * tl.load(u + at, there) + g
    tl.store(u_next + at, step, there)
    tl.store(w_next + at, tl.fma(step, -rate, before), there)


@triton.jit
def velocity(
    total, w, u, w_next, u_next, exempt, numel, inverse, scale,
    decay, rate, m, DECAYS: tl.constexpr, EXEMPTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """v' = m v + rate g, w' = w - v'; m is corrected."""
    at, there, is_exempt = places(numel, exempt, EXEMPTS, BLOCK)
    before = tl.load(w + at, there)
    g = mean(tl.load(total + at, there), before, is_exempt, inverse, scale, decay, DECAYS)
    step = tl.fma(g, rate, m * tl.load(u + at, there))
    tl.store(u_next + at, step, there)
    tl.store(w_next + at, before - step, there)
