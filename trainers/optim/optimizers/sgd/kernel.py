"""SGD in one pass, compiled by Numba."""

from typing import Any

from trainers.optim.compiled import NO_STATE, fma, inlined, kept, mean, summed


@inlined  # type: ignore[untyped-decorator]
def _sgd(
    one: Any, other: Any, w: Any, w_next: Any, factors: Any, adds: bool, divides: bool, decays: bool
) -> None:  # fmt: skip
    rate = factors[4]
    for i in range(len(one)):
        g = mean(summed(one[i], other[i], adds), w[i], factors, divides, decays)
        w_next[i] = fma(g, -rate, w[i])


@kept(NO_STATE)  # type: ignore[untyped-decorator]
def sgd(
    one: Any, other: Any, w: Any, w_next: Any, factors: Any, adds: bool, divides: bool, decays: bool, in_place: bool
) -> None:
    """w' = w - rate g; the constant is the rate."""
    f = (factors[0], factors[1], factors[2], factors[3], factors[4])  # which no vector overlaps
    if in_place:
        _sgd(one, other, w, w, f, adds, divides, decays)
    else:
        _sgd(one, other, w, w_next, f, adds, divides, decays)
