"""The two forms of momentum in one pass, compiled by Numba."""

from typing import Any

from trainers.optim.compiled import ONE_STATE, fma, gradient, inlined, kept


@inlined  # type: ignore[untyped-decorator]
def _momentum(given: Any, w: Any, u: Any, w_next: Any, u_next: Any, factors: Any, how: Any) -> None:
    rate, m = factors[5], factors[6]
    for i in range(len(w)):
        g = gradient(given, i, w[i], factors, how)
        step = m * u[i] + g
        u_next[i], w_next[i] = step, fma(step, -rate, w[i])


@kept(ONE_STATE)  # type: ignore[untyped-decorator]
def momentum(given: Any, w: Any, u: Any, w_next: Any, u_next: Any, factors: Any, how: Any, in_place: bool) -> None:
    """u' = m u + g, w' = w - rate u'; the constants are the rate and m."""
    f = (factors[0], factors[1], factors[2], factors[3], factors[4], factors[5], factors[6])  # which no vector overlaps
    if in_place:
        _momentum(given, w, u, w, u, f, how)
    else:
        _momentum(given, w, u, w_next, u_next, f, how)


@inlined  # type: ignore[untyped-decorator]
def _velocity(given: Any, w: Any, u: Any, w_next: Any, u_next: Any, factors: Any, how: Any) -> None:
    rate, m = factors[5], factors[6]
    for i in range(len(w)):
        g = gradient(given, i, w[i], factors, how)
        step = fma(g, rate, m * u[i])
        u_next[i], w_next[i] = step, w[i] - step


@kept(ONE_STATE)  # type: ignore[untyped-decorator]
def velocity(given: Any, w: Any, u: Any, w_next: Any, u_next: Any, factors: Any, how: Any, in_place: bool) -> None:
    """v' = m v + rate g, w' = w - v'; the constants are the rate and m, corrected."""
    f = (factors[0], factors[1], factors[2], factors[3], factors[4], factors[5], factors[6])  # which no vector overlaps
    if in_place:
        _velocity(given, w, u, w, u, f, how)
    else:
        _velocity(given, w, u, w_next, u_next, f, how)
