"""Nesterov's momentum in one pass, compiled by Triton for GPUs."""

from typing import Any

import triton
import triton.language as tl

from trainers.optim.compiled_on_gpu import mean, places


@triton.jit  # type: ignore[untyped-decorator]
def nesterov(
    total: Any, w: Any, u: Any, w_next: Any, u_next: Any, exempt: Any, numel: Any, inverse: Any, scale: Any,
    decay: Any, rate: Any, m: Any, DECAYS: tl.constexpr, EXEMPTS: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """u' = m u + g, w' = w - rate (g + m u')."""
    at, there, is_exempt = places(numel, exempt, EXEMPTS, BLOCK)
    before = tl.load(w + at, there)
    g = mean(tl.load(total + at, there), before, is_exempt, inverse, scale, decay, DECAYS)
    step = m * tl.load(u + at, there) + g
    tl.store(u_next + at, step, there)
    tl.store(w_next + at, tl.fma(tl.fma(step, m, g), -rate, before), there)
