"""One pass of Adam over memory, compiled by Numba.

An update by torch's operations reads and writes each vector several times, and its fused kernel works in place, where
a worker keeps the last version until the next one is whole. This one reads each element once and writes it once. It has
the operations of `torch.optim.AdamW(fused=True)`, in its order and fused where they are fused there; each element is
treated alike wherever it stands, so that its bits depend on no cut.
"""

from typing import Any

import numpy as np
from numba import boolean, float32, int64, types

from trainers.optim.compiled import fma, inlined, kept

SIGNATURE = types.void(*[float32[::1]] * 9, int64[::1], *[float32] * 8, boolean)


@inlined  # type: ignore[untyped-decorator]
def _move(
    g: np.ndarray, w: np.ndarray, m: np.ndarray, s: np.ndarray, step: np.ndarray,
    w_next: np.ndarray, m_next: np.ndarray, s_next: np.ndarray, step_next: np.ndarray, one: np.float32,
    keep: np.float32, c1: np.float32, b2: np.float32, c2: np.float32,
    rate: np.float32, root: np.float32, epsilon: np.float32,
) -> None:  # fmt: skip
    for i in range(len(g)):
        mean: Any = fma(c1, g[i] - m[i], m[i])
        square: Any = fma(c2 * g[i], g[i], b2 * s[i])
        m_next[i], s_next[i], step_next[i] = mean, square, step[i] + one
        w_next[i] = w[i] * keep - rate * mean / (np.sqrt(square) / root + epsilon)


@kept(SIGNATURE)  # type: ignore[untyped-decorator]
def adam(
    g: np.ndarray, w: np.ndarray, m: np.ndarray, s: np.ndarray, step: np.ndarray,
    w_next: np.ndarray, m_next: np.ndarray, s_next: np.ndarray, step_next: np.ndarray,
    bounds: np.ndarray, keep: np.float32, c1: np.float32, b2: np.float32, c2: np.float32,
    rate: np.float32, root: np.float32, epsilon: np.float32, one: np.float32, in_place: bool,
) -> None:  # fmt: skip
    """w' = k w - rate m' / (sqrt(s') / root + epsilon), m' = m + c1 (g - m), s' = b2 s + c2 g^2, step' = step + 1.

    Every vector is (n,) float32.

    Args:
        bounds: (2 k + 2,), from 0 to n: k is `keep` between an even place and the next, and 1 between an odd and its.
        rate, root: the learning rate divided by 1 - b1^t, and sqrt(1 - b2^t).
        one: 1, which would be a float64 were it written here.
        in_place: Whether the next vectors are the same memory.
    """
    for part in range(len(bounds) - 1):
        a, b, k = bounds[part], bounds[part + 1], one if part % 2 else keep
        x, y, z, t = w[a:b], m[a:b], s[a:b], step[a:b]
        if in_place:
            _move(g[a:b], x, y, z, t, x, y, z, t, one, k, c1, b2, c2, rate, root, epsilon)
        else:
            _move(
                g[a:b], x, y, z, t, w_next[a:b], m_next[a:b], s_next[a:b], step_next[a:b],
                one, k, c1, b2, c2, rate, root, epsilon,
            )  # fmt: skip
