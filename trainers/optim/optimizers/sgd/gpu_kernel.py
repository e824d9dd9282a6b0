"""SGD in one pass, compiled by Triton for GPUs."""

import triton
import triton.language as tl

from trainers.optim.gpu_kernel import gradient


@triton.jit
def sgd(
    total, w, w_next, exempt, numel, inverse, scale,
    decay, rate, DECAYS: tl.constexpr, EXEMPTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """w' = w - rate g."""
    at, there, _, before, g = gradient(
        total, w, exempt, numel, inverse, scale, decay, DECAYS, EXEMPTS, BLOCK
    )  # fmt: skip
    tl.store(w_next + at, tl.fma(g, -rate, before), there)
