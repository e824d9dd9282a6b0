"""Nesterov's momentum in one pass, compiled by Numba."""

from typing import Any

from trainers.optim.compiled import ONE_STATE, fma, inlined, kept, mean, summed


@inlined  # type: ignore[untyped-decorator]
def _nesterov(
    one: Any, other: Any, w: Any, u: Any, w_next: Any, u_next: Any, factors: Any, adds: bool, divides: bool,
    decays: bool,
) -> None:  # fmt: skip
    rate, m = factors[4], factors[5]
    for i in range(len(one)):
        g = mean(summed(one[i], other[i], adds), w[i], factors, divides, decays)
        step = m * u[i] + g
        u_next[i], w_next[i] = step, fma(fma(step, m, g), -rate, w[i])


@kept(ONE_STATE)  # type: ignore[untyped-decorator]
def nesterov(
    one: Any, other: Any, w: Any, u: Any, w_next: Any, u_next: Any, factors: Any, adds: bool, divides: bool,
    decays: bool, in_place: bool,
) -> None:  # fmt: skip
    """u' = m u + g, w' = w - rate (g + m u'); the constants are the rate and m."""
    f = (factors[0], factors[1], factors[2], factors[3], factors[4], factors[5])  # which no vector overlaps
    if in_place:
        _nesterov(one, other, w, u, w, u, f, adds, divides, decays)
    else:
        _nesterov(one, other, w, u, w_next, u_next, f, adds, divides, decays)
