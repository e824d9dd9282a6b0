"""SGD in one pass, compiled by Triton for GPUs."""

from typing import Any

import triton
import triton.language as tl

from trainers.optim.compiled_on_gpu import mean, places


@triton.jit  # type: ignore[untyped-decorator]
def sgd(
    total: Any, w: Any, w_next: Any, exempt: Any, numel: Any, inverse: Any, scale: Any,
    decay: Any, rate: Any, DECAYS: tl.constexpr, EXEMPTS: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """w' = w - rate g."""
    at, there, is_exempt = places(numel, exempt, EXEMPTS, BLOCK)
    before = tl.load(w + at, there)
    g = mean(tl.load(total + at, there), before, is_exempt, inverse, scale, decay, DECAYS)
    tl.store(w_next + at, tl.fma(g, -rate, before), there)
