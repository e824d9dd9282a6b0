"""SGD in one pass, compiled by Triton for GPUs."""

import triton
import triton.language as tl

from trainers.optim.gpu_kernel import mean, places


@triton.jit
def sgd(
    total, w, w_next, exempt, numel, inverse, scale,
    decay, rate, DECAYS: tl.constexpr, EXEMPTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """w' = w - rate g."""
    at, there, is_exempt = places(numel, exempt, EXEMPTS, BLOCK)
    before = tl.load(w + at, there)
    g = mean(tl.load(total + at, there), before, is_exempt, inverse, scale, decay, DECAYS)
    tl.store(w_next + at, tl.fma(g, -rate, before), there)
