"""SGD in one pass, compiled by Numba."""

from typing import Any

from trainers.optim.compiled import NO_STATE, fma, inlined, kept, mean


@inlined  # type: ignore[untyped-decorator]
def _sgd(total: Any, w: Any, w_next: Any, factors: Any, divides: bool, decays: bool) -> None:
    rate = factors[4]
    for i in range(len(total)):
        w_next[i] = fma(mean(total[i], w[i], factors, divides, decays), -rate, w[i])


@kept(NO_STATE)  # type: ignore[untyped-decorator]
def sgd(total: Any, w: Any, w_next: Any, factors: Any, divides: bool, decays: bool, in_place: bool) -> None:
    """w' = w - rate g; the constant is the rate."""
    f = (factors[0], factors[1], factors[2], factors[3], factors[4])  # which no vector overlaps
    if in_place:
        _sgd(total, w, w, f, divides, decays)
    else:
        _sgd(total, w, w_next, f, divides, decays)
