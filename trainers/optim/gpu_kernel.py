"""What the kernels of the update rules for GPUs have in common."""

import triton
import triton.language as tl


@triton.jit
def mean(
    total, w, is_exempt, inverse, scale, decay, DECAYS: tl.constexpr
):  # fmt: skip
    """Elements of the gradient, from those of the sum and their parameters w. torch divides by a number on a GPU as it
    multiplies by its inverse."""
    g = total * inverse * scale
    if DECAYS:
        g = tl.where(is_exempt, g, tl.fma(w, decay, g))
    return g


@triton.jit
def places(numel, exempt, EXEMPTS: tl.constexpr, BLOCK: tl.constexpr):
    """Of this program's elements: where they are, which of these there are, and which have no weight decay."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < numel
    is_exempt = at < 0  # none
    if EXEMPTS:
        is_exempt = tl.load(exempt + at, there, 0) != 0
    return at, there, is_exempt
