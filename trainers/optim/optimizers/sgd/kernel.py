"""SGD in one pass, compiled by Numba."""

from typing import Any

from trainers.optim.compiled import NO_STATE, fma, gradient, inlined, kept


@inlined  # type: ignore[untyped-decorator]
def _sgd(given: Any, w: Any, w_next: Any, factors: Any, how: Any) -> None:
    rate = factors[5]
    for i in range(len(w)):
        w_next[i] = fma(gradient(given, i, w[i], factors, how), -rate, w[i])


@kept(NO_STATE)  # type: ignore[untyped-decorator]
def sgd(given: Any, w: Any, w_next: Any, factors: Any, how: Any, in_place: bool) -> None:
    """w' = w - rate g; the constant is the rate."""
    f = (factors[0], factors[1], factors[2], factors[3], factors[4], factors[5])  # which no vector overlaps
    if in_place:
        _sgd(given, w, w, f, how)
    else:
        _sgd(given, w, w_next, f, how)
