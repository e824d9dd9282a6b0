"""Adam in one pass, compiled by Triton for GPUs."""

import triton
import triton.language as tl

from trainers.optim.gpu_kernel import gradient


@triton.jit
def adam(
    total, w, m, s, step, w_next, m_next, s_next, step_next,
    exempt, numel, inverse, scale, decay, keep, rate, c1, b2, c2,
    epsilon, LOG_B1: tl.constexpr, LOG_B2: tl.constexpr,
    DECAYS: tl.constexpr, EXEMPTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """w' = keep w - rate m' / (sqrt(s') / root + epsilon), as in `kernel.py`.

    t is the largest number of an update in this program's elements: between two parameters there may be zeros. What is
    made of it is float64, since 1 - b2^t would lose its digits.
    """
    at, there, is_exempt, before, g = gradient(
        total, w, exempt, numel, inverse, scale, decay, DECAYS, EXEMPTS, BLOCK
    )  # fmt: skip
    updates = tl.load(step + at, there, 0) + 1
    t = tl.max(updates, 0).to(tl.float64)
    corrected = (rate / (1 - tl.exp(t * LOG_B1))).to(tl.float32)
    root = tl.sqrt(1 - tl.exp(t * LOG_B2)).to(tl.float32)
    old = tl.load(m + at, there)
    mean_gradient = tl.fma(g - old, c1, old)
    square = tl.fma(c2 * g, g, b2 * tl.load(s + at, there))
    tl.store(m_next + at, mean_gradient, there)
    tl.store(s_next + at, square, there)
    tl.store(step_next + at, updates, there)
    kept = tl.where(is_exempt, before, before * keep)
    change = tl.div_rn(corrected * mean_gradient, tl.div_rn(tl.sqrt_rn(square), root) + epsilon)
    tl.store(w_next + at, kept - change, there)
