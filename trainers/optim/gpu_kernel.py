"""What the kernels of the update rules for GPUs begin with."""

import triton
import triton.language as tl


@triton.jit
def gradient(
    total, w, exempt, numel, inverse, scale, decay, DECAYS: tl.constexpr, EXEMPTS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Of this program's elements: where they are, which of these there are, which have no weight decay, their
    parameters, and their gradient.

    torch divides by a number on a GPU as it multiplies by its inverse.
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < numel
    is_exempt = at < 0  # none
    if EXEMPTS:
        is_exempt = tl.load(exempt + at, there, 0) != 0
    before = tl.load(w + at, there)
    g = tl.load(total + at, there) * inverse * scale
    if DECAYS:
        g = tl.where(is_exempt, g, tl.fma(before, decay, g))
    return at, there, is_exempt, before, g
