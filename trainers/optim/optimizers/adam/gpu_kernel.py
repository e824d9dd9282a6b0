"""Adam in one pass, compiled by Triton for GPUs."""

from typing import Any

import triton
import triton.language as tl

from trainers.optim.compiled_on_gpu import mean, places


@triton.jit  # type: ignore[untyped-decorator]
def adam(
    total: Any, w: Any, m: Any, s: Any, step: Any, w_next: Any, m_next: Any, s_next: Any, step_next: Any,
    exempt: Any, numel: Any, inverse: Any, scale: Any, decay: Any, keep: Any, rate: Any, c1: Any, b2: Any, c2: Any,
    epsilon: Any, LOG_B1: tl.constexpr, LOG_B2: tl.constexpr,
    DECAYS: tl.constexpr, EXEMPTS: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """w' = keep w - rate m' / (sqrt(s') / root + epsilon), as in `kernel.py`.

    t is the largest number of an update in this program's elements: between two parameters there may be zeros. What is
    made of it is float64, since 1 - b2^t would lose its digits.
    """
    at, there, is_exempt = places(numel, exempt, EXEMPTS, BLOCK)
    before = tl.load(w + at, there)
    g = mean(tl.load(total + at, there), before, is_exempt, inverse, scale, decay, DECAYS)
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
