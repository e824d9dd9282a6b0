"""The gradient noise scale: from how large a batch on more examples bring less (McCandlish et al. 2018, section 2.2).

It is the trace of the covariance of the examples' gradients, divided by the square of the true gradient's norm: about
the batch at which a step makes half of the progress of a step along the true gradient.
"""

from typing import NamedTuple


class NoiseEstimate(NamedTuple):
    """Unbiased estimates from one step. Their quotient is not: average each over many steps before dividing."""

    squared_norm: float
    """Of the true gradient, |G|^2. It may be below 0, as the estimate of something small."""
    trace: float
    """Of the covariance of the gradients of single examples, S."""


def estimate_noise(small_square: float, big_square: float, small: int, big: int) -> NoiseEstimate:
    """From gradients of two batches, each a mean over its examples (appendix A.1).

    Args:
        small_square: |G_small|^2, the square of the norm, or its mean over several batches of this size.
        big_square: |G_big|^2.
        small: B_small, examples.
        big: B_big, more examples.
    """
    squared_norm = (big * big_square - small * small_square) / (big - small)
    trace = (small_square - big_square) / (1 / small - 1 / big)
    return NoiseEstimate(squared_norm, trace)


def noise_scale(squared_norm: float, trace: float) -> float | None:
    """B_simple = S / |G|^2, in examples; None where the estimates are too rough to tell."""
    return trace / squared_norm if squared_norm > 0 and trace >= 0 else None
